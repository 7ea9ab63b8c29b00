"""Capture calls in CUDA graphs and replay them, as a captured training step does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.weak import WeakIdKeyDictionary


class _Captured(NamedTuple):
    """A graph, what its call returned, and the length and last address of its tensor list."""

    graph: Any
    result: Any
    num_tensors: int
    last_address: int

    def is_of(self, tensors: Sequence[torch.Tensor]) -> bool:
        return (len(tensors), tensors[-1].data_ptr()) == (self.num_tensors, self.last_address)


class Replays:
    """A cache of captured calls, keyed by the tensors they work on; CPU calls run directly."""

    def __init__(self) -> None:
        """Create an empty cache."""
        # keyed by the first tensor and dropped with it: comparing all of 208 tensors takes 50 us,
        # more than a replay
        self._captured = WeakIdKeyDictionary()

    def call(self, kind: str, tensors: Sequence[torch.Tensor], task: Callable[[], Any]) -> Any:
        """Replay the task on these tensors, after capturing it the first time.

        The result is what the task returned during the capture, with updated values.
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
    """Warm up the task on a side stream, then capture it; return the graph and the task's result."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        task()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = task()
    return graph, result
