"""Pages that need nothing else."""

from __future__ import annotations

import re

from tersor.bench.plots import line_chart
from tersor.bench.report import Page
from tersor.bench.report.figure import Figure
from tersor.bench.report.section import MeasuredEncoder, Section

HOSTILE = "<script>alert('&\"')</script>\x00\x1b[2J\ud800"


def test_a_page_escapes_what_it_is_reported():
    section = Section("<o>").heading("<h>").text("<p>").code("<c>").facts({"<d>": "<e>"})
    section.table("<i>", ["<a>"], [["<b>"]]).links(
        "<m>", [MeasuredEncoder("<q>", 1, 1, 1)], 1, "<s>"
    )
    section.show(Figure("<f>", line_chart("<v>", "x", {"<j>": [(0, 1)]}), "<k>"))
    text = Page("<t>", "<l>").add(section, "<n>").render()
    for name in "tlshpcnodeiabfvjkmq":
        assert f"&lt;{name}&gt;" in text
        assert f"<{name}>" not in text.replace("<p>", "").replace("<a>", "").replace("<b>", "")


def test_a_page_holds_no_character_that_html_cannot():
    section = Section(HOSTILE).table(HOSTILE, [HOSTILE], [[HOSTILE]]).text(HOSTILE)
    text = Page(HOSTILE, HOSTILE).add(section, HOSTILE).render()
    text.encode()
    assert "\x00" not in text
    assert "\x1b" not in text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


def test_a_page_asks_for_nothing():
    figure = Figure("f", line_chart("g", "x", {"j": [(0, 1)]}), "k")
    text = Page("t").add(Section().show(figure)).render()
    text = text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|//\w|@import|url\(", text)
    assert all(
        link.startswith(("data:", "#")) for link in re.findall(r'(?:href|src)="([^"]*)', text)
    )


def test_every_figure_is_saved_under_a_name_of_its_own():
    svg = line_chart("g", "x", {"j": [(0, 1)]})
    section = Section().show(Figure("f", svg, "k"), Figure("f", svg, "k", is_folded=True))
    page = Page("t").add(section).add(Section().show(Figure("f", svg, "k")))
    names = ["f", "f-2", "f-3"]
    assert list(page.figures) == names
    found = re.findall(r'<a hidden download="([^"]+)"', page.render())
    assert found == [f"{name}.svg" for name in names]
    assert page.render().count(svg) == 3


def test_figures_that_are_folded_away_are_counted():
    svg = line_chart("g", "x", {"j": [(0, 1)]})
    folded = [Figure("f", svg, "k", is_folded=True)] * 2
    assert "<summary>1 more figure</summary>" in Page("t").add(Section().show(*folded[:1])).render()
    assert "<summary>2 more figures</summary>" in Page("t").add(Section().show(*folded)).render()


def test_a_chart_with_nothing_to_draw_is_left_out():
    page = Page("t").add(Section().show(Figure("f", line_chart("g", "x", {}), "k")))
    assert page.figures == {}
    assert "<figure>" not in page.render()


def test_contents_lead_to_the_sections_even_when_they_share_a_name():
    page = Page("t").add(Section("one"), "same").add(Section("two"), "same")
    text = page.render()
    assert re.findall(r'href="#([^"]+)"', text) == re.findall(r'<h2 id="([^"]+)"', text)
    assert len(set(re.findall(r'<h2 id="([^"]+)"', text))) == 2


def test_an_only_section_needs_no_contents():
    text = Page("t").add(Section("one").text("shown")).render()
    assert "<nav" not in text
    assert "<h2" not in text
    assert "<p>shown</p>" in text


def test_columns_of_numbers_stand_apart_from_columns_of_words():
    rows = [["4-bit", "1,000", "~2e-3 (best)"], ["float32", "", "5%"]]
    text = Page("t").add(Section().table("t", ["name", "n", "e"], rows)).render()
    heads = re.findall(r'<th scope="col"( class="words")?>', text)
    assert [bool(words) for words in heads] == [True, False, False]
