"""Build one page about any number of runs: summaries, figures, tables, and their provenance.

The sites provide the sections of a run; ``tersor.bench.sites`` lists them.
"""

from tersor.bench.report.building import build_report
from tersor.bench.report.links import COMMON_LINKS
from tersor.bench.report.page import GENERATOR, Page
from tersor.bench.report.runs import read_runs

__all__ = ["COMMON_LINKS", "GENERATOR", "Page", "build_report", "read_runs"]
