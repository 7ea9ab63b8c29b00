"""Training data, from files or synthetic."""

from tersor.workloads.data.clicks import ClickBatch, ClickSource
from tersor.workloads.data.opening import open_clicks
from tersor.workloads.data.synthetic import SyntheticClicks

__all__ = ["ClickBatch", "ClickSource", "SyntheticClicks", "open_clicks"]
