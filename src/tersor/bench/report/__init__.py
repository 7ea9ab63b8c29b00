"""One page about any number of runs: what they come to, figures, tables, and what made them.

Which sections a run gets is up to the sites: ``tersor.bench.sites`` lists what they provide.
"""

from tersor.bench.report.building import build_report
from tersor.bench.report.links import COMMON_LINKS
from tersor.bench.report.page import GENERATOR, Page
from tersor.bench.report.runs import read_runs

__all__ = ["COMMON_LINKS", "GENERATOR", "Page", "build_report", "read_runs"]
