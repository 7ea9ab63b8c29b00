"""One page about any number of runs: what they come to, figures, tables, and how to remake them."""

from tersor.bench.report.building import build_report, run_sentence
from tersor.bench.report.links import COMMON_LINKS
from tersor.bench.report.runs import Run, read_runs

__all__ = ["COMMON_LINKS", "Run", "build_report", "read_runs", "run_sentence"]
