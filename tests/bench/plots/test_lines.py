from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from tersor.bench.plots import line_chart
from tests.bench.plots.reading import SVG, corners, lines, markers, texts, tooltips


def drawn(series, **options):
    return ET.fromstring(line_chart("loss & more", "step", series, **options))


def test_every_series_is_a_line_with_its_name():
    root = drawn({"a": [(0, 1.0), (10, 0.5)], "b": [(0, 2.0), (10, 1.5)], "none": []})
    assert {name: len(places) for name, places in lines(root).items()} == {"a": 2, "b": 2}
    assert {"loss & more", "step", "a", "b"} <= set(texts(root))
    assert "none" not in texts(root)


def test_points_lie_within_the_figure_and_higher_values_higher():
    root = drawn({"a": [(5, -3.0), (6, 9.0), (7, 2.0)]})
    found = lines(root)["a"]
    assert all(0 < x < float(root.get("width")) for x, _ in found)
    assert all(0 < y < float(root.get("height")) for _, y in found)
    assert found[1][1] < found[2][1] < found[0][1]
    assert found[0][0] < found[1][0] < found[2][0]
    assert markers(root)["a"] == found


def test_a_logarithmic_axis_puts_equal_quotients_at_equal_distances():
    root = drawn({"a": [(1, 1.0), (10, 2.0), (100, 4.0)]}, log_x=True, log_y=True)
    (x0, y0), (x1, y1), (x2, y2) = lines(root)["a"]
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)


def test_series_differ_in_marker_and_not_in_colour_alone():
    root = drawn({name: [(0, k), (1, k)] for k, name in enumerate("abcdefgh")})
    shapes = {path.get("id"): path.get("d") for path in root.iter(f"{SVG}path") if path.get("id")}
    uses = [group.find(f"{SVG}use") for group in tooltips(root).values()]
    looks = {(use.get("stroke"), shapes[use.get("href").removeprefix("#")]) for use in uses}
    assert len(looks) == 8
    assert len({shape for _, shape in looks}) == 7


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0, 5e-324, 1e308])
def test_what_an_axis_cannot_show_is_left_out(value):
    root = drawn({"a": [(1, 1.0), (2, value), (3, 2.0)]}, log_y=True)
    assert len(lines(root)["a"]) == 2


def test_numbers_whose_difference_is_not_finite_are_left_out():
    root = drawn({"a": [(1, 1.0), (2, 1e308), (3, -1e308), (4, 2.0)]})
    assert len(lines(root)["a"]) == 2


def test_one_point_and_no_point_can_be_drawn():
    assert len(lines(drawn({"a": [(1, 1.0)]}))["a"]) == 1
    assert line_chart("t", "x", {"a": []}) == ""


def test_half_widths_reach_from_the_point_to_both_sides():
    root = drawn({"a": [(0, 1.0), (1, 2.0)]}, half_widths={"a": [0.5, 0.0]})
    [(x, y), _] = lines(root)["a"]
    upright = [
        corners(path) for path in root.findall(f"{SVG}path") if path.get("stroke") == "#0060b0"
    ]
    [(first, second)] = [line for line in upright if line[0][0] == line[1][0]]
    assert first[0] == second[0] == x
    assert (first[1] + second[1]) / 2 == pytest.approx(y, abs=0.02)
    # half of the distance between 1 and 2
    assert first[1] - second[1] == pytest.approx(y - lines(root)["a"][1][1], abs=0.02)


def test_faint_series_have_no_entry_in_the_legend():
    root = drawn({"loud": [(0, 1.0), (1, 2.0)], "quiet": [(0, 1.0), (1, 3.0)]}, faint=["quiet"])
    assert "loud" in texts(root)
    assert "quiet" not in texts(root)
    assert set(lines(root)) == {"loud", "quiet"}


def test_a_level_is_a_line_across_that_the_legend_names():
    root = drawn({"a": [(0, 1.0), (1, 3.0)]}, level=(2.0, "limit"))
    assert "limit" in texts(root)
    places = lines(root)["a"]
    middle = (places[0][1] + places[1][1]) / 2
    across = [corners(path) for path in root.findall(f"{SVG}path") if path.get("stroke-dasharray")]
    assert [y for _, y in across[0]] == [pytest.approx(middle, abs=0.02)] * 2


def test_all_names_of_a_long_legend_stand_above_the_area():
    names = [f"a codec with a long name {k}" for k in range(20)]
    root = drawn({name: [(0, 1.0), (1, 2.0)] for name in names})
    above = {t.text: float(t.get("y")) for t in root.iter(f"{SVG}text") if t.text in names}
    assert set(above) == set(names)
    assert max(above.values()) < min(y for places in lines(root).values() for _, y in places)
