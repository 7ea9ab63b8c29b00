"""Encoded tensors between ranks: one all-to-all of frames, agreement, failing together, counters.

Knows no site. Read ``group.py`` first, then ``all_to_all.py``.
"""

from tersor.comm.agreement import announce_failure, check_same_everywhere, gathered
from tersor.comm.all_to_all import AllToAll, ChunkVolume, Transfer
from tersor.comm.counters import PHASES, Stopwatch, Volume
from tersor.comm.group import RankGroup, Turn

__all__ = [
    "PHASES",
    "AllToAll",
    "ChunkVolume",
    "RankGroup",
    "Stopwatch",
    "Transfer",
    "Turn",
    "Volume",
    "announce_failure",
    "check_same_everywhere",
    "gathered",
]
