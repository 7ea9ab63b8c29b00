"""One page that needs nothing else: text, sortable tables, and figures to take away."""

from tersor.bench.html.figure import Figure
from tersor.bench.html.links import Way
from tersor.bench.html.page import GENERATOR, Page

__all__ = ["GENERATOR", "Figure", "Page", "Way"]
