"""What holds for every chart."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from xml.etree import ElementTree as ET

import matplotlib as mpl
import pytest

from tersor.bench.plots import Bar, Point, bar_chart, line_chart, scatter_chart
from tersor.bench.plots.style import SCREEN_COLOURS
from tests.arch.source_files import REPOSITORY
from tests.bench.plots.reading import SVG, texts, tooltips

HOSTILE = "<script>alert('&\"')</script>\x00\x1b[2J\ud800"


def charts(name: str) -> dict[str, str]:
    """Draw every kind of chart with a name in every place that takes one."""
    return {
        "lines": line_chart(
            name, name, {name: [(0, 1)]}, y_label=name, level=(1, name), half_widths={name: [1]}
        ),
        "faint": line_chart(name, name, {name: [(0, 1)]}, faint=[name]),
        "scatter": scatter_chart(
            name, name, name, [Point(name, 1, 1, name), Point("b", 2, 2, "k")], lines={name: [(1, 1)]}
        ),
        "bars": bar_chart(name, name, [Bar(name, 1, name), Bar("b", 9, "k")]),
    }  # fmt: skip


KINDS = sorted(charts("n"))


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_names_stay_text(kind):
    chart = charts(HOSTILE)[kind]
    root = ET.fromstring(chart)
    assert "script" not in {element.tag.removeprefix(SVG) for element in root.iter()}
    assert root.get("aria-label").startswith("<script>")
    assert any("<script>" in words for words in texts(root))
    chart.encode()


@pytest.mark.parametrize("name", ["$x^2$", "_hidden", "a\nb", "漢字", "%s {0} \\frac"])
@pytest.mark.parametrize("kind", KINDS)
def test_names_are_shown_as_they_are(kind, name):
    root = ET.fromstring(charts(name)[kind])
    words = name.replace("\n", " ")
    assert words in texts(root)
    assert any(one.startswith(words) for one in tooltips(root))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_data_give_the_same_bytes_whatever_matplotlib_is_set_to(kind, monkeypatch):
    first = charts("n")[kind]
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    other = {
        "font.size": 30,
        "svg.fonttype": "path",
        "lines.linewidth": 9,
        "axes.labelcolor": "red",
    }
    with mpl.rc_context(other):
        assert charts("n")[kind] == first
        assert mpl.rcParams["font.size"] == 30


@pytest.mark.parametrize("kind", KINDS)
def test_every_colour_has_another_one_for_dark_screens(kind):
    found = set(re.findall(r'(?:fill|stroke)="([^"]*)"', charts("n")[kind])) - {"none"}
    assert found
    assert found <= set(SCREEN_COLOURS)
    assert "style=" not in charts("n")[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_chart_asks_for_nothing_and_its_ids_are_its_own(kind):
    root = ET.fromstring(charts("n")[kind])
    chart = charts("n")[kind].replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?:|url\(|@import", chart)
    ids = {element.get("id") for element in root.iter() if element.get("id")}
    assert {use.get("href").removeprefix("#") for use in root.iter(f"{SVG}use")} == ids


def test_drawing_needs_no_display_and_only_drawing_needs_matplotlib():
    script = (
        "import sys, tersor.bench.plots as plots\n"
        "assert 'matplotlib' not in sys.modules\n"
        "print(plots.line_chart('t', 'x', {'a': [(0, 1)]}))\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    env = {key: value for key, value in os.environ.items() if key != "DISPLAY"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**env, "PYTHONPATH": str(REPOSITORY / "src"), "MPLBACKEND": "TkAgg"},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<svg")
