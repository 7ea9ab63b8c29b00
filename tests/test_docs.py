"""The pages a newcomer reads first are true: their code runs, and the make targets they name exist."""

from __future__ import annotations

import re

import pytest

from tersor.codecs import registry
from tests.arch.source_files import REPOSITORY

PAGES = ("README.md", "CONTRIBUTING.md")
EXAMPLE_PAGES = (
    "README.md",
    "docs/activations.md",
    "docs/codecs.md",
    "docs/compile.md",
    "docs/embeddings.md",
    "docs/data.md",
    "docs/gpt.md",
    "docs/vision.md",
    "docs/benchmark-embeddings.md",
    "docs/plan.md",
    "docs/report.md",
    "docs/peers.md",
)


def _text(page: str) -> str:
    return (REPOSITORY / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", EXAMPLE_PAGES)
def test_the_examples_of_a_page_run(page, monkeypatch) -> None:
    # what examples register is gone afterwards
    monkeypatch.setattr(registry, "_codecs", dict(registry._codecs))
    examples = re.findall(r"^```python\n(.*?)^```", _text(page), re.DOTALL | re.MULTILINE)
    assert examples
    for example in examples:
        exec(compile(example, page, "exec"), {})


def test_every_make_target_named_in_the_pages_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", _text("Makefile"), re.MULTILINE))
    named = {name for page in PAGES for name in re.findall(r"`?make ([a-z-]+)`", _text(page))}
    assert {"test", "lint"} <= named
    assert named <= targets
