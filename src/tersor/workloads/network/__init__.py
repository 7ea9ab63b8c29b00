"""Ranks on a private network within this machine, throttled if possible."""

from tersor.workloads.network.bandwidth import Bandwidth
from tersor.workloads.network.opening import Loopback, Network, open_best_network, open_network
from tersor.workloads.network.processes import RankProcesses

__all__ = ["Bandwidth", "Loopback", "Network", "RankProcesses", "open_best_network", "open_network"]
