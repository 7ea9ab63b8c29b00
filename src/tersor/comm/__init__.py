"""Exchanges of encoded tensors between ranks: all-to-all of frames, agreement, joint failure, counters.

This layer knows nothing of the sites that use it. Read ``group.py`` first, then ``all_to_all.py``;
``levels.py`` holds the exchanges between nodes.
"""

from tersor.comm.agreement import (
    check_distributed,
    check_same_everywhere,
    failure_announced,
    gathered,
    is_distributed,
)
from tersor.comm.all_to_all import AllToAll, Transfer
from tersor.comm.counters import PHASES, Stopwatch, Volume
from tersor.comm.group import RankGroup, Turn
from tersor.comm.levels import Collective, Exchange, LocalRanks, Place, RankLevels

__all__ = [
    "PHASES",
    "AllToAll",
    "Collective",
    "Exchange",
    "LocalRanks",
    "Place",
    "RankGroup",
    "RankLevels",
    "Stopwatch",
    "Transfer",
    "Turn",
    "Volume",
    "check_distributed",
    "check_same_everywhere",
    "failure_announced",
    "gathered",
    "is_distributed",
]
