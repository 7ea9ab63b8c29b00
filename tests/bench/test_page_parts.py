"""Pages and figures that need nothing else."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from tersor.bench.html import Figure, Page, Way
from tersor.bench.svg import Bar, Point, bar_chart, line_chart, scatter_chart

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert('&\"')</script>\x00\x1b[2J\ud800"


def drawn(series, **options):
    return ET.fromstring(line_chart("loss & more", "step", series, **options))


def texts(root):
    return [text.text for text in root.iter(f"{SVG}text")]


def places(line):
    return [tuple(map(float, place.split(","))) for place in line.get("points").split()]


def test_every_series_is_a_line_with_its_name():
    root = drawn({"a": [(0, 1.0), (10, 0.5)], "b": [(0, 2.0), (10, 1.5)], "none": []})
    lines = list(root.iter(f"{SVG}polyline"))
    assert [len(line.get("points").split()) for line in lines] == [2, 2]
    assert {"loss & more", "step", "a", "b"} <= set(texts(root))
    assert "none" not in texts(root)


def test_points_lie_within_the_figure_and_higher_values_higher():
    root = drawn({"a": [(5, -3.0), (6, 9.0), (7, 2.0)]})
    [line] = root.iter(f"{SVG}polyline")
    found = places(line)
    assert all(0 < x < float(root.get("width")) for x, _ in found)
    assert all(0 < y < float(root.get("height")) for _, y in found)
    assert found[1][1] < found[2][1] < found[0][1]
    assert found[0][0] < found[1][0] < found[2][0]


def test_a_logarithmic_axis_puts_equal_quotients_at_equal_distances():
    [line] = drawn({"a": [(1, 1.0), (10, 2.0), (100, 4.0)]}, log_x=True, log_y=True).iter(
        f"{SVG}polyline"
    )
    (x0, y0), (x1, y1), (x2, y2) = places(line)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)


def test_series_differ_in_marker_and_not_in_colour_alone():
    root = drawn({name: [(0, k), (1, k)] for k, name in enumerate("abcdefgh")})
    groups = [group for group in root.iter(f"{SVG}g") if group.find(f"{SVG}polyline") is not None]
    looks = {
        (group.get("color"), group[-1].tag, re.sub(r"[\d.]+", "", group[-1].get("d", "")))
        for group in groups
    }
    shapes = {look[1:] for look in looks}
    assert len(looks) == 8
    # two triangles, of which one points down, are told apart here by their places only
    assert len(shapes) == 6


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0, 5e-324, 1e308])
def test_what_an_axis_cannot_hold_is_left_out(value):
    [line] = drawn({"a": [(1, 1.0), (2, value), (3, 2.0)]}, log_y=True).iter(f"{SVG}polyline")
    assert len(places(line)) == 2


def test_numbers_whose_difference_is_not_finite_are_left_out():
    [line] = drawn({"a": [(1, 1.0), (2, 1e308), (3, -1e308), (4, 2.0)]}).iter(f"{SVG}polyline")
    assert len(places(line)) == 2


def test_one_point_and_no_point_can_be_drawn():
    assert next(drawn({"a": [(1, 1.0)]}).iter(f"{SVG}polyline")) is not None
    assert "nothing to draw" in line_chart("t", "x", {"a": []})
    assert "nothing to draw" in scatter_chart("t", "x", "y", [])
    assert "nothing to draw" in bar_chart("t", "x", [Bar("a", float("nan"))])


def test_half_widths_reach_from_the_point_to_both_sides():
    root = drawn({"a": [(0, 1.0), (1, 2.0)]}, half_widths={"a": [0.5, 0.0]})
    bars = [path.get("d") for path in root.iter(f"{SVG}path") if "h8" in path.get("d", "")]
    assert len(bars) == 1


def test_faint_series_have_no_entry_in_the_legend():
    root = drawn({"loud": [(0, 1.0), (1, 2.0)], "quiet": [(0, 1.0), (1, 3.0)]}, faint=["quiet"])
    assert "loud" in texts(root)
    assert "quiet" not in texts(root)
    assert len(list(root.iter(f"{SVG}polyline"))) == 2


def test_every_point_of_a_scatter_has_a_marker_a_tooltip_and_room_for_its_name():
    points = [Point(f"codec {k}", 1 + k, 10 - k, "ours" if k % 2 else "peer") for k in range(6)]
    root = ET.fromstring(scatter_chart("t", "x", "y", points, lines={"front": [(1, 10), (6, 5)]}))
    assert {point.name for point in points} | {"ours", "peer", "front"} <= set(texts(root))
    told = [title.text for title in root.iter(f"{SVG}title")]
    assert sorted(told) == sorted(f"{p.name}: {p.x:.4g}, {p.y:.4g}" for p in points)


def test_names_of_points_at_one_place_do_not_cover_each_other():
    root = ET.fromstring(scatter_chart("t", "x", "y", [Point(f"n{k}", 1, 1, "") for k in range(9)]))
    named = [t for t in root.iter(f"{SVG}text") if (t.text or "").startswith("n")]
    spots = [(float(t.get("x")), float(t.get("y"))) for t in named]
    assert len(spots) > 4
    for k, (x, y) in enumerate(spots):
        assert all(abs(x - u) > 10 or abs(y - v) > 10 for u, v in spots[k + 1 :])


def test_every_point_of_a_crowd_is_named_beside_it_or_by_a_number():
    names = [f"flat-device-absolute-{k}" for k in range(30)]
    points = [Point(name, 1 + k % 3 / 50, 1 + k / 200, "ours") for k, name in enumerate(names)]
    points += [Point("far", 9, 9, "ours")]
    root = ET.fromstring(scatter_chart("t", "x", "y", points))
    shown = texts(root)
    # a name stands beside its point, or a number does, and the key below says whose it is
    key = {word.split()[0]: word.split(" ", 1)[1] for word in shown if re.match(r"\d+ flat", word)}
    assert key
    assert all(shown.count(number) == 1 for number in key)
    assert set(re.findall(r"flat-device-absolute-\d+", " ".join(shown))) == set(names)
    assert "far" in shown
    spots = {t.text: (float(t.get("x")), float(t.get("y"))) for t in root.iter(f"{SVG}text")}
    marks = {
        group.find(f"{SVG}title").text.split(":")[0]: group.find(f"{SVG}circle")
        for group in root.iter(f"{SVG}g")
        if group.find(f"{SVG}title") is not None
    }
    for name in set(names) & set(shown):
        # the baseline of a name that begins or ends at most 16 away, above or below
        assert abs(spots[name][1] - float(marks[name].get("cy"))) <= 16 + 13
    assert max(y for _, y in spots.values()) < float(root.get("height"))


def test_bars_are_as_long_as_their_values():
    root = ET.fromstring(bar_chart("t", "ratio", [Bar("a", 10.0, "loose"), Bar("b", 20.0, "base")]))
    first, second = (
        float(r.get("width")) for r in root.iter(f"{SVG}rect") if r.get("x") == r_left(root)
    )
    assert second == pytest.approx(2 * first, rel=0.01)
    assert {"a", "b", "10", "20", "loose", "base"} <= set(texts(root))


def r_left(root):
    """Where bars begin; markers on them begin further right."""
    return min((r.get("x") for r in root.iter(f"{SVG}rect")), key=float)


@pytest.mark.parametrize(
    "chart",
    [
        line_chart(HOSTILE, HOSTILE, {HOSTILE: [(0, 1)]}, y_label=HOSTILE, level=(1, HOSTILE)),
        line_chart(HOSTILE, HOSTILE, {HOSTILE: [(0, 1)]}, faint=[HOSTILE]),
        scatter_chart(HOSTILE, HOSTILE, HOSTILE, [Point(HOSTILE, 1, 1, HOSTILE)]),
        bar_chart(HOSTILE, HOSTILE, [Bar(HOSTILE, 1, HOSTILE)]),
    ],
    ids=["lines", "faint", "scatter", "bars"],
)
def test_hostile_names_stay_text(chart):
    root = ET.fromstring(chart)
    assert "script" not in {element.tag.removeprefix(SVG) for element in root.iter()}
    chart.encode()


def test_a_page_escapes_what_it_is_told():
    page = Page("<t>").lead("<l>").section("<s>").heading("<h>").text("<p>").code("<c>")
    page.contents([("<n>", "<o>")]).facts({"<d>": "<e>"}).table("<i>", ["<a>"], [["<b>"]])
    page.links("<m>", [Way("<q>", 1, 1, 1)], 1)
    text = page.show(Figure("<f>", line_chart("<g>", "x", {"<j>": [(0, 1)]}), "<k>")).render()
    for name in "tlshpcnodeiabfgjkmq":
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
