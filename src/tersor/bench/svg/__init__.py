"""Charts as SVG text: no plotting package, and nothing to load in a browser.

Every chart is a whole file: colours are attributes, for paper. Its parts have classes too, by which
the style sheet of a page gives them the colours of a dark screen. Points that an axis cannot hold, not
finite or on a logarithmic axis not above 0, are left out.
"""

from tersor.bench.svg.bars import Bar, bar_chart
from tersor.bench.svg.lines import Points, line_chart
from tersor.bench.svg.scatter import Point, scatter_chart

__all__ = ["Bar", "Point", "Points", "bar_chart", "line_chart", "scatter_chart"]
