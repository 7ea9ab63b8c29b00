"""Training of DLRM with a compressed exchange."""

from tersor.workloads.dlrm.config import DlrmConfig
from tersor.workloads.dlrm.run import DlrmRun

__all__ = ["DlrmConfig", "DlrmRun"]
