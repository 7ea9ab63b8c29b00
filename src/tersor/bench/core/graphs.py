"""Calls captured once in CUDA graphs and replayed, as a captured training step makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


class Replays:
    """Calls by the tensors they work on; on the CPU they are simply made."""

    def __init__(self) -> None:
        """Start without graphs."""
        self._captured: dict[Any, tuple[Any, Any]] = {}

    def call(self, kind: str, tensors: Sequence[torch.Tensor], task: Callable[[], Any]) -> Any:
        """Capture the task on these tensors when they are first seen; then replay it.

        Returns what the task returned when it was captured, with new values in it.
        """
        if not tensors[0].is_cuda:
            return task()
        # memory of a tensor that is gone may hold another one: the same graph does for the same size
        key = (kind, *((tensor.data_ptr(), tensor.numel()) for tensor in tensors))
        if key not in self._captured:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                task()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                result = task()
            self._captured[key] = graph, result
        graph, result = self._captured[key]
        graph.replay()
        return result
