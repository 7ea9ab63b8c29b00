from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from tersor.bench.plots import Point, scatter_chart
from tests.bench.plots.reading import SVG, markers, spots, texts, tooltips


def test_every_point_of_a_scatter_has_a_marker_a_tooltip_and_room_for_its_name():
    points = [Point(f"codec {k}", 1 + k, 10 - k, "ours" if k % 2 else "peer") for k in range(6)]
    root = ET.fromstring(scatter_chart("t", "x", "y", points, lines={"front": [(1, 10), (6, 5)]}))
    assert {point.name for point in points} | {"ours", "peer", "front"} <= set(texts(root))
    assert sorted(tooltips(root)) == sorted(f"{p.name}: {p.x:.4g}, {p.y:.4g}" for p in points)
    assert [len(places) for places in markers(root).values()] == [1] * 6


def test_a_point_without_a_name_is_told_by_its_kind():
    root = ET.fromstring(scatter_chart("t", "x", "y", [Point("", 1, 2, "peer")]))
    assert list(tooltips(root)) == ["peer: 1, 2"]


def test_no_point_gives_no_chart():
    assert scatter_chart("t", "x", "y", []) == ""
    assert scatter_chart("t", "x", "y", [Point("a", float("nan"), 1, "")]) == ""


def test_names_of_points_at_one_place_do_not_cover_each_other():
    root = ET.fromstring(scatter_chart("t", "x", "y", [Point(f"n{k}", 1, 1, "") for k in range(9)]))
    named = [t for t in root.iter(f"{SVG}text") if (t.text or "").startswith("n")]
    places = [(float(t.get("x")), float(t.get("y"))) for t in named]
    assert len(places) > 4
    for k, (x, y) in enumerate(places):
        assert all(abs(x - u) > 10 or abs(y - v) > 10 for u, v in places[k + 1 :])


def test_every_point_of_a_crowd_is_named_next_to_it_or_by_a_number():
    names = [f"flat-device-absolute-{k}" for k in range(30)]
    points = [Point(name, 1 + k % 3 / 50, 1 + k / 200, "ours") for k, name in enumerate(names)]
    points += [Point("far", 9, 9, "ours")]
    root = ET.fromstring(scatter_chart("t", "x", "y", points))
    shown = texts(root)
    # a name stands next to its point, or a number does, and the key below says whose it is
    key = {word.split()[0]: word.split(" ", 1)[1] for word in shown if re.match(r"\d+ flat", word)}
    assert key
    assert all(shown.count(number) == 1 for number in key)
    assert set(re.findall(r"flat-device-absolute-\d+", " ".join(shown))) == set(names)
    assert "far" in shown
    marks = {name.split(":")[0]: places[0] for name, places in markers(root).items()}
    for name in set(names) & set(shown):
        # the baseline of a name that begins or ends at most 16 away, above or below
        assert abs(spots(root)[name][1] - marks[name][1]) <= 16 + 13
    assert max(y for _, y in spots(root).values()) < float(root.get("height"))
