"""No page of the repository has a link that leads nowhere."""

from __future__ import annotations

import pytest

from tests.arch.link_rules import findings, pages
from tests.arch.source_files import REPOSITORY, plant

PAGE = """# The page

[a file](docs/other.md) [a heading](docs/other.md#two-words--codes) [a second](docs/other.md#again-1)
[here](#the-page) [elsewhere](https://example.org/none#none) ![figure](docs/figure.svg) <img src="docs/figure.svg">
[reference][one] `[code](nowhere.md)`

[one]: docs/other.md#again

```
[fenced](nowhere.md)
# not a heading
```
"""
OTHER = "# Two words & `codes`\n\n## Again\n\n## Again\n\n[back](../README.md)\n"


@pytest.fixture
def repository(tmp_path):
    return plant(tmp_path, {"README.md": PAGE, "docs/other.md": OTHER, "docs/figure.svg": "<svg/>"})


def test_links_lead_somewhere() -> None:
    assert findings(REPOSITORY) == []


def test_all_pages_are_looked_at() -> None:
    found = {str(path.relative_to(REPOSITORY)) for path in pages(REPOSITORY)}
    assert {"README.md", "CONTRIBUTING.md", "docs/codecs.md"} <= found
    assert "docs/decisions/0001-record-decisions.md" in found
    assert "src/tersor/kernels/rows/README.md" in found


def test_links_that_are_right_are_not_reported(repository) -> None:
    assert findings(repository) == []


@pytest.mark.parametrize(
    ("right", "wrong", "finding"),
    [
        ("(docs/other.md)", "(docs/othr.md)", "README.md: docs/othr.md: there is no such file"),
        ("#two-words--codes", "#two-words", "docs/other.md#two-words: there is no such heading"),
        ("#again-1", "#again-2", "docs/other.md#again-2: there is no such heading"),
        ("(#the-page)", "(#not-a-heading)", "README.md: #not-a-heading: there is no such heading"),
        ("(docs/figure.svg)", "(docs/none.svg)", "docs/none.svg: there is no such file"),
        ('"docs/figure.svg"', '"docs/none.svg"', "docs/none.svg: there is no such file"),
        ("[one]: docs/other.md#again", "[one]: other.md", "other.md: there is no such file"),
        ("(docs/other.md)", "(../)", "../: there is no such file"),
    ],
)
def test_a_link_that_leads_nowhere_is_seen(repository, right, wrong, finding) -> None:
    assert right in PAGE
    (found,) = findings(plant(repository, {"README.md": PAGE.replace(right, wrong, 1)}))
    assert found.endswith(finding)
