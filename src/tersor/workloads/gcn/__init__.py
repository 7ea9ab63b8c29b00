"""Training of graph networks, over the whole graph or with neighbour sampling."""

from tersor.workloads.gcn.config import GcnConfig
from tersor.workloads.gcn.run import GcnRun

__all__ = ["GcnConfig", "GcnRun"]
