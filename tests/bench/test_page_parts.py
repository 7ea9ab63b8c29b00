"""Pages and figures that need nothing else."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from tersor.bench.html import Page
from tersor.bench.svg import line_chart

SVG = "{http://www.w3.org/2000/svg}"


def drawn(series):
    return ET.fromstring(line_chart("loss & more", "step", series))


def test_every_series_is_a_line_with_its_name():
    root = drawn({"a": [(0, 1.0), (10, 0.5)], "b": [(0, 2.0), (10, 1.5)], "none": []})
    lines = root.findall(f"{SVG}polyline")
    assert [len(line.get("points").split()) for line in lines] == [2, 2]
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"loss & more", "step", "a", "b"} <= set(texts)
    assert "none" not in texts


def test_points_lie_within_the_figure_and_higher_values_higher():
    [line] = drawn({"a": [(5, -3.0), (6, 9.0), (7, 2.0)]}).findall(f"{SVG}polyline")
    places = [tuple(map(float, place.split(","))) for place in line.get("points").split()]
    assert all(0 < x < 640 and 0 < y < 320 for x, y in places)
    assert places[1][1] < places[2][1] < places[0][1]
    assert places[0][0] < places[1][0] < places[2][0]


def test_one_point_and_no_point_can_be_drawn():
    assert drawn({"a": [(1, 1.0)]}).find(f"{SVG}polyline") is not None
    assert "nothing to draw" in line_chart("t", "x", {"a": []})


def test_a_page_escapes_what_it_is_told():
    page = Page("<t>").heading("<h>").text("<p>").code("<c>").table(["<a>"], [["<b>"]])
    text = page.render()
    for name in "thcabp":
        assert f"&lt;{name}&gt;" in text
    assert text.startswith("<!doctype html>")
