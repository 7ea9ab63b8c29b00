"""Calls captured once in CUDA graphs and replayed, as a captured training step makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.weak import WeakIdKeyDictionary


class _Captured(NamedTuple):
    """A graph, what its call returned, and the list that it works on, by its length and its last tensor."""

    graph: Any
    result: Any
    num_tensors: int
    last_address: int

    def is_of(self, tensors: Sequence[torch.Tensor]) -> bool:
        return (len(tensors), tensors[-1].data_ptr()) == (self.num_tensors, self.last_address)


class Replays:
    """Calls by the tensors they work on; on the CPU they are simply made."""

    def __init__(self) -> None:
        """Start without graphs."""
        # by the first tensor, and only as long as it lives: to look at all of 208 takes 50 us, more
        # than a replay
        self._captured = WeakIdKeyDictionary()

    def call(self, kind: str, tensors: Sequence[torch.Tensor], task: Callable[[], Any]) -> Any:
        """Capture the task on these tensors when they are first seen; then replay it.

        Returns what the task returned when it was captured, with new values in it.
        """
        if not tensors[0].is_cuda:
            return task()
        known: dict[str, _Captured] | None = self._captured.get(tensors[0])
        if known is None:
            known = self._captured[tensors[0]] = {}
        if kind not in known or not known[kind].is_of(tensors):
            known[kind] = _Captured(*_capture(task), len(tensors), tensors[-1].data_ptr())
        known[kind].graph.replay()
        return known[kind].result


def _capture(task: Callable[[], Any]) -> tuple[Any, Any]:
    """Call the task on another stream, as capturing needs; return its graph and what it returned."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        task()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = task()
    return graph, result
