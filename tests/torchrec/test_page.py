"""The page about TorchRec is true: its example runs on two ranks."""

from __future__ import annotations

import re

from tests.arch.source_files import REPOSITORY
from tests.sites.ranks import returned, run_ranks


def example(rank: int) -> tuple[float, float]:
    page = (REPOSITORY / "docs" / "torchrec.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {}
    exec(compile(text, "docs/torchrec.md", "exec"), names)
    stats = names["codecs"].stats
    names["codecs"].close()
    return stats.forward.ratio, stats.backward.ratio


def test_the_example_of_the_page_runs():
    # a planner may leave a rank without tables, which then sends no rows
    found = returned(run_ranks(example, 2))
    assert max(forward for forward, _ in found) > 5.0
    assert {backward for _, backward in found} == {2.0}
