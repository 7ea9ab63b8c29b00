"""Charts drawn by matplotlib as SVG text, in which words stay words.

A chart is a whole file with the colours of paper, and the same data give the same bytes. The style
sheet of a page replaces them on a dark screen (``style.SCREEN_COLOURS``). Points that an axis cannot
show, not finite or on a logarithmic axis not above 0, are left out. A chart without anything to draw
is the empty text.
"""

from tersor.bench.plots.bars import Bar, bar_chart
from tersor.bench.plots.lines import Points, line_chart
from tersor.bench.plots.scatter import Point, scatter_chart

__all__ = ["Bar", "Point", "Points", "bar_chart", "line_chart", "scatter_chart"]
