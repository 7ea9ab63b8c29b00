from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from tersor.bench.plots import Bar, bar_chart
from tests.bench.plots.reading import lines, texts


def test_bars_are_as_long_as_their_values():
    root = ET.fromstring(bar_chart("t", "ratio", [Bar("a", 10.0, "loose"), Bar("b", 20.0, "base")]))
    widths = {
        name: max(x for x, _ in places) - min(x for x, _ in places)
        for name, places in lines(root).items()
    }
    assert list(widths) == ["a: 10, loose", "b: 20, base"]
    assert widths["b: 20, base"] == pytest.approx(2 * widths["a: 10, loose"], rel=0.01)
    assert {"a", "b", "10", "20", "loose", "base", "ratio"} <= set(texts(root))


def test_names_stand_from_top_to_bottom_and_long_ones_are_cut():
    long = "a name that is longer than there is room for"
    root = ET.fromstring(bar_chart("t", "x", [Bar(long, 1.0), Bar("b", 2.0)]))
    first, second = (min(y for _, y in places) for places in lines(root).values())
    assert first < second
    assert "a name that is longer…" in texts(root)
    assert f"{long}: 1" in lines(root)


def test_what_cannot_be_a_bar_is_left_out():
    values = [float("nan"), float("inf"), -1.0]
    assert bar_chart("t", "x", [Bar("a", value) for value in values]) == ""
    root = ET.fromstring(bar_chart("t", "x", [Bar("a", 0.0), *(Bar("b", v) for v in values)]))
    assert list(lines(root)) == ["a: 0"]
