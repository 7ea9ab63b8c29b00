from __future__ import annotations

import pytest

from tersor.bench.core.blocks import Quality
from tersor.bench.core.row_file import RowFile
from tersor.bench.page import filled, main
from tersor.errors import SpecError
from tests.arch.source_files import REPOSITORY
from tests.bench.kernels.test_device_goals import on_cuda

PAGE = """# Title

<!-- rows: results/rows.jsonl input=embeddings bound=0.03 -->
old
<!-- end -->
between
<!-- goals: results/rows.jsonl -->
<!-- end -->
"""


@pytest.fixture
def root(tmp_path):
    with RowFile(tmp_path / "results" / "rows.jsonl") as file:
        file.append(on_cuda("flat", 1234))
        file.append(on_cuda("flat", 1111, bound=0.01))
        file.append(on_cuda("flat", 2222, input="gradients"))
    return tmp_path


NUM_BLOCKS = {
    "docs/performance.md": 6,
    "docs/benchmark-activations.md": 6,
    "docs/benchmark-embeddings.md": 4,
    "docs/embeddings.md": 2,
    "docs/plan.md": 6,
}


def test_tables_are_made_from_the_rows_asked_for(root):
    text = filled(PAGE, root)
    assert "| ratio | with lead GB/s |" in text, "no row has a speed in a loop"
    assert "| flat | 0.03 | 50.00 | 1234 / 10000 |" in text
    assert "1111" not in text
    assert "2222" not in text
    assert "old" not in text
    assert "between" in text
    assert "| flat encodes at 1200 GB/s with a lead | 1200 | 1234 | met |" in text
    assert filled(text, root) == text


def test_goals_that_no_row_judges_can_be_left_out(root):
    whole = filled(PAGE, root)
    judged = filled(PAGE.replace("rows.jsonl -->", "rows.jsonl only=measured -->"), root)
    assert "not measured" in whole
    assert "not measured" not in judged
    assert "| flat encodes at 1200 GB/s with a lead | 1200 | 1234 | met |" in judged
    with pytest.raises(SpecError, match="only=measured"):
        filled(PAGE.replace("rows.jsonl -->", "rows.jsonl only=met -->"), root)


def test_figures_of_quality_are_columns_of_their_own(root):
    with RowFile(root / "results" / "rows.jsonl", resume=True) as file:
        file.append(on_cuda("ans", quality=Quality(ssim=0.875)))
    table = filled(PAGE, root).split("<!-- end -->")[0]
    assert "| with lead GB/s | SSIM |" in table
    assert "| 0.875 |" in table


def test_rows_are_chosen_by_codec(root):
    page = PAGE.replace("rows.jsonl input", "rows.jsonl codec=flat-device input", 1)
    assert "1234 /" not in filled(page, root).split("<!-- end -->")[0]
    page = PAGE.replace("rows.jsonl input", "rows.jsonl codec=flat,ans input", 1)
    assert filled(page, root).split("<!-- end -->")[0].count("1234 /") == 1


def test_a_file_that_is_not_there_is_said_to_be(tmp_path):
    assert "Not measured yet: `results/rows.jsonl`" in filled(PAGE, tmp_path)


def test_an_unknown_filter_is_refused(root):
    with pytest.raises(SpecError, match="inputs"):
        filled(PAGE.replace("input=", "inputs="), root)


@pytest.mark.parametrize("folder", ["docs", "."])
def test_a_page_is_filled_in_place(root, folder):
    page = root / folder / "page.md"
    page.parent.mkdir(exist_ok=True)
    page.write_text(PAGE, encoding="utf-8")
    assert main([str(page)]) == 0
    assert "1234" in page.read_text(encoding="utf-8")


PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_the_figures_of_every_committed_page_come_from_committed_rows(page):
    text = page.read_text(encoding="utf-8")
    assert filled(text, REPOSITORY) == text, f"run python -m tersor.bench.page {page}"
    # of pages that are known to have figures, none has lost them
    name = page.relative_to(REPOSITORY).as_posix()
    assert text.count("<!-- end -->") >= NUM_BLOCKS.get(name, 0)
