"""Charts drawn by matplotlib as SVG, in which text remains text.

A chart is a complete file, and the same data produce the same bytes. Its colours are for paper; on a dark
screen, the style sheet of a page replaces them (``style.SCREEN_COLOURS``). Points that an axis cannot show
are omitted: those that are not finite, or not above 0 on a logarithmic axis. A chart without anything to
draw is the empty string.
"""

from tersor.bench.plots.bars import Bar, bar_chart
from tersor.bench.plots.lines import Points, line_chart
from tersor.bench.plots.scatter import Point, scatter_chart

__all__ = ["Bar", "Point", "Points", "bar_chart", "line_chart", "scatter_chart"]
