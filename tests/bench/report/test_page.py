"""Pages that need nothing else."""

from __future__ import annotations

import re

from tersor.bench.html import Figure, Page, Way
from tersor.bench.plots import line_chart

HOSTILE = "<script>alert('&\"')</script>\x00\x1b[2J\ud800"


def test_a_page_escapes_what_it_is_told():
    page = Page("<t>").lead("<l>").section("<s>").heading("<h>").text("<p>").code("<c>")
    page.contents([("<n>", "<o>")]).facts({"<d>": "<e>"}).table("<i>", ["<a>"], [["<b>"]])
    page.links("<m>", [Way("<q>", 1, 1, 1)], 1)
    text = page.show(Figure("<f>", line_chart("<v>", "x", {"<j>": [(0, 1)]}), "<k>")).render()
    for name in "tlshpcnodeiabfvjkmq":
        assert f"&lt;{name}&gt;" in text
        assert f"<{name}>" not in text.replace("<p>", "").replace("<a>", "").replace("<b>", "")
    Page(HOSTILE).table(HOSTILE, [HOSTILE], [[HOSTILE]]).render().encode()


def test_a_page_asks_for_nothing():
    page = Page("t").show(Figure("f", line_chart("g", "x", {"j": [(0, 1)]}), "k"))
    text = page.render().replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|//\w|@import|url\(", text)
    assert all(
        link.startswith(("data:", "#")) for link in re.findall(r'(?:href|src)="([^"]*)', text)
    )


def test_every_figure_is_saved_under_a_name_of_its_own():
    svg = line_chart("g", "x", {"j": [(0, 1)]})
    page = Page("t").show(Figure("f", svg, "k"), Figure("f", svg, "k", is_folded=True))
    assert re.findall(r'<a hidden download="([^"]+)"', page.render()) == ["f.svg", "f-2.svg"]
    assert page.render().count(svg) == 2


def test_a_chart_with_nothing_to_draw_is_left_out():
    page = Page("t").show(Figure("f", line_chart("g", "x", {}), "k"))
    assert page.figures == {}
    assert "<figure>" not in page.render()


def test_contents_lead_to_the_sections_even_when_they_share_a_name():
    page = Page("t").contents([("same", "one"), ("same", "two")]).section("same").section("same")
    text = page.render()
    assert re.findall(r'href="#([^"]+)"', text) == re.findall(r'<h2 id="([^"]+)"', text)
    assert len(set(re.findall(r'<h2 id="([^"]+)"', text))) == 2
