"""Reports in a real browser; skipped where chromium is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import canonicalize

import pytest

from tersor.bench.report import Page, build_report, read_runs
from tersor.bench.report.section import MeasuredEncoder, Section
from tersor.bench.sites import report_sections
from tersor.policy import predicted_speedup
from tests.bench.report import runs as made
from tests.browser import Browser, browsing, needs_chromium

pytestmark = needs_chromium

COLUMN = """
Array.from(document.querySelectorAll("table")).find((t) => t.caption.textContent.startsWith("All rows"))
"""
RATIOS = f"""
(() => {{
  const table = {COLUMN};
  const heads = Array.from(table.tHead.rows[0].cells).map((cell) => cell.textContent);
  const column = heads.indexOf("ratio");
  return Array.from(table.tBodies[0].rows).map((row) => Number(row.cells[column].textContent));
}})()
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    report = build_report(
        read_runs(made.write_all(folder)),
        report_sections(),
        title="a report",
        command="tersor report",
    )
    target = folder / "report.html"
    target.write_text(report.render(), encoding="utf-8")
    return target


def page_of(section: Section) -> str:
    return Page("t").add(section).render()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as found:
        yield found


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_renders_without_problems_and_never_scrolls_sideways(browser, page, width, dark) -> None:
    browser.open(page, width=width, dark=dark)
    assert browser.problems == []
    assert browser.run("document.querySelectorAll('figure svg').length") > 10
    for element in ("document.documentElement", "document.body"):
        assert browser.run(f"{element}.scrollWidth <= {element}.clientWidth"), element
    # figures scale, tables scroll in a box of their own
    wide = "Array.from(document.querySelectorAll('svg, .scroll, pre')).every((e) => e.clientWidth <= innerWidth)"
    assert browser.run(wide)


def test_no_column_of_a_quickstart_is_hidden_on_a_laptop(browser, tmp_path) -> None:
    made.write_all(tmp_path)
    target = tmp_path / "report.html"
    runs = read_runs([str(tmp_path / "quickstart")])
    target.write_text(build_report(runs, report_sections(), title="t").render(), encoding="utf-8")
    browser.open(target, width=1280)
    boxes = browser.run("""
    Array.from(document.querySelectorAll(".scroll")).map((box) => [box.scrollWidth, box.clientWidth])
    """)
    assert len(boxes) >= 2
    assert all(inner <= outer for inner, outer in boxes), boxes


def test_dark_screens_get_light_text_in_figures_too(browser, page) -> None:
    colours = []
    for dark in (False, True):
        browser.open(page, dark=dark)
        colours.append(
            [
                browser.run("getComputedStyle(document.body).color"),
                browser.run("getComputedStyle(document.querySelector('svg text')).fill"),
                browser.run(
                    "getComputedStyle(document.querySelector('svg g > path[stroke]')).stroke"
                ),
                browser.run("getComputedStyle(document.querySelector('svg use')).stroke"),
            ]
        )
    light, dark_ones = colours
    assert all(a != b for a, b in zip(light, dark_ones, strict=True))


def test_a_click_on_a_header_sorts_and_a_second_one_reverses(browser, page) -> None:
    browser.open(page)
    before = browser.run(RATIOS)
    click = f"""
    Array.from({COLUMN}.tHead.querySelectorAll("button")).find((b) => b.textContent === "ratio").click()
    """
    browser.run(click)
    assert browser.run(RATIOS) == sorted(before)
    assert before != sorted(before)
    browser.run(click)
    assert browser.run(RATIOS) == sorted(before, reverse=True)
    state = f'{COLUMN}.querySelector("[aria-sort]")'
    assert browser.run(f"{state}.textContent") == "ratio"
    assert browser.run(f"{state}.getAttribute('aria-sort')") == "descending"
    assert browser.problems == []


def test_the_keyboard_alone_sorts(browser, page) -> None:
    browser.open(page)
    browser.run(f'{COLUMN}.tHead.querySelector("button").focus()')
    browser.press("Tab")
    browser.press("Enter")
    assert browser.run(f"{COLUMN}.querySelectorAll('[aria-sort=ascending]').length") == 1
    assert browser.run("document.activeElement.tagName") == "BUTTON"


def test_words_and_empty_cells_are_sorted_too(browser, tmp_path) -> None:
    target = tmp_path / "t.html"
    rows = [["4-bit", "10"], ["float32", ""], ["auto", "9.5"], ["half", "1,000"]]
    target.write_text(page_of(Section().table("t", ["name", "n"], rows)), encoding="utf-8")
    browser.open(target)
    cells = (
        "Array.from(document.querySelectorAll('tbody td:nth-child({})')).map((c) => c.textContent)"
    )
    for column, wanted in (
        (1, ["4-bit", "auto", "float32", "half"]),
        (2, ["9.5", "10", "1,000", ""]),
    ):
        browser.run(f"document.querySelectorAll('thead button')[{column - 1}].click()")
        assert browser.run(cells.format(column)) == wanted


ENCODERS = [
    MeasuredEncoder("small", 20.0, 1.0, 2.0),
    MeasuredEncoder("fast", 4.0, 200.0, 400.0),
    MeasuredEncoder("poor", 1.5, 0.1, 0.1),
]


def lines_of(browser) -> list[list[str]]:
    return browser.run("""
    Array.from(document.querySelectorAll(".links li")).map((line) =>
      [line.querySelector(".name").textContent, Number(line.querySelector(".gain").textContent)])
    """)


def choose(browser, gbit: str, box: str = "number") -> str:
    return browser.run(f"""
    (() => {{
      const box = document.querySelector(".links input[type={box}]");
      box.value = "{gbit}";
      box.dispatchEvent(new Event("input"));
      return document.querySelector(".links p[aria-live]").textContent;
    }})()
    """)


@pytest.fixture
def chooser(browser, tmp_path) -> Browser:
    target = tmp_path / "t.html"
    target.write_text(
        page_of(Section().links("somewhere", ENCODERS, 1, "a note")), encoding="utf-8"
    )
    browser.open(target)
    assert browser.problems == []
    return browser


@pytest.mark.parametrize("gbit", [0.5, 1, 30, 5000, 123456])
def test_speedups_on_a_link_are_those_that_tables_show(chooser, gbit) -> None:
    choose(chooser, str(gbit))
    speedups = {
        encoder.name: predicted_speedup(
            ratio=encoder.ratio,
            encode_gbps=encoder.encode_gbps,
            decode_gbps=encoder.decode_gbps,
            bandwidth_gbit_s=gbit,
        )
        for encoder in ENCODERS
    } | {"float32": 1}
    wanted = sorted(speedups, key=lambda name: -speedups[name])
    lines = lines_of(chooser)
    assert [name for name, _ in lines] == wanted
    assert dict(lines) == {name: pytest.approx(speedups[name], rel=0.06) for name in wanted}


def test_moving_the_bandwidth_changes_the_advice_and_says_why(chooser) -> None:
    assert lines_of(chooser)[0][0] == "small"
    assert chooser.run("document.querySelector('.links').lastChild.textContent") == "a note"
    assert chooser.run("document.querySelector('.links h4').textContent").endswith("somewhere")
    for box, link in (("number", "100"), ("range", "2")):
        words = choose(chooser, link, box)
        assert words.startswith(
            "At 100 Gbit/s fast is fastest, 2.91 times float32: 18 % of its time"
        )
        # 3 / 4 of the bytes are saved, and a GB takes 7.5 ms to encode and decode
        assert words.endswith("Next is float32. From 800 Gbit/s on, float32 is faster.")
        assert chooser.run("document.querySelector('.links input[type=number]').value") == "100"
        choose(chooser, "1")
    words = choose(chooser, "3200")
    assert words.startswith(
        "At 3,200 Gbit/s float32 as it is comes first. Next is fast, 0.31 times"
    )
    for wrong in ("", "-1", "0"):
        assert choose(chooser, wrong) == "Give a bandwidth above 0."
        assert lines_of(chooser) == []


def test_where_another_becomes_faster_is_reported(chooser) -> None:
    words = choose(chooser, "1")
    # 1 / 20 + 1.5 b = 1 / 4 + 0.0075 b, where b is in GB/s
    until = 8 * (1 / 4 - 1 / 20) / (1.5 - 0.0075)
    ending = f"Next is fast, 3.99 times float32. From {until:.3g} Gbit/s on, fast is faster."
    assert words.endswith(ending)
    assert "fast is fastest" in choose(chooser, f"{until * 1.01}")
    assert "small is fastest" in choose(chooser, f"{until * 0.99}")
    assert "about as fast as float32" in choose(chooser, "799")


def test_a_saved_figure_opens_on_its_own(browser, page, tmp_path) -> None:
    browser.open(page)
    link = "document.querySelector('figcaption a')"
    assert browser.run(f"{link}.checkVisibility()")
    saved = tmp_path / browser.run(f"{link}.download")
    browser.save(f"{link}.click()", tmp_path)
    runs = read_runs([str(page.parent / "kernels.jsonl")])
    figure = next(iter(build_report(runs, report_sections(), title="t").figures.values()))
    assert canonicalize(saved.read_text(encoding="utf-8")) == canonicalize(figure.svg)
    browser.open(saved)
    assert browser.run("document.documentElement.tagName") == "svg"
    assert browser.problems == []
