"""The bytes that a fused operation moves and how it was timed, as part of a result row."""

from __future__ import annotations

from msgspec import Struct

from tersor.bench.core.row_checks import FromOne
from tersor.bench.core.timing import Percentiles


class OperationCost(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One call of an operation.

    Attributes:
        moved_nbytes: the least bytes that a call must read and write: values, bases, scales and codes.
        num_calls: consecutive calls whose mean is one measured time.
        graph_s: seconds of one replay of the call as a CUDA graph, by events on the device. The host
            queues it ahead, and the cache is emptied first. None if there are no graphs.
    """

    moved_nbytes: FromOne
    num_calls: FromOne
    graph_s: Percentiles | None = None
