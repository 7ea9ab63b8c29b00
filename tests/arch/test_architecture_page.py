"""The page that explains the code names functions that exist, and all that encode or decode."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.arch.source_files import PACKAGE, REPOSITORY

PAGE = REPOSITORY / "docs" / "architecture.md"
LINK = re.compile(r"\[`([\w.]+)`\]\((\.\./src/[\w/]+\.py)\)")
VERBS = re.compile(r"(begin_)?(encode|decode)(_\w+)?$")
MOST_VERBS = 8


def defined_in(path: Path) -> set[str]:
    """Return the functions, classes and methods of a module, methods with the name of their class."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            methods = (part for part in node.body if isinstance(part, ast.FunctionDef))
            names.update(f"{node.name}.{method.name}" for method in methods)
    return names


def broken_links(text: str) -> list[str]:
    return [
        f"{name} in {path}"
        for name, path in LINK.findall(text)
        if name not in defined_in((PAGE.parent / path).resolve())
    ]


def verbs() -> set[str]:
    """Return the names of public functions and methods of codecs and containers that code."""
    files = [*(PACKAGE / "codecs").rglob("*.py"), *(PACKAGE / "container").rglob("*.py")]
    names = {name.rpartition(".")[2] for file in files for name in defined_in(file)}
    return {name for name in names if VERBS.match(name)}


def test_every_function_that_the_page_links_exists():
    text = PAGE.read_text(encoding="utf-8")
    assert len(LINK.findall(text)) >= 20
    assert broken_links(text) == []


@pytest.mark.parametrize(
    "fault",
    ["[`compress_all`](../src/tersor/api.py)", "[`Codec.seal`](../src/tersor/codecs/codec.py)"],
)
def test_a_function_that_is_gone_is_found(fault):
    assert broken_links(fault)


def test_the_page_lists_all_functions_that_encode_or_decode():
    table = PAGE.read_text(encoding="utf-8").split("| function | does |")[1].split("\n\n")[0]
    listed = {name.rpartition(".")[2] for name, _ in LINK.findall(table)}
    assert listed == verbs()
    assert len(listed) <= MOST_VERBS
