"""Readbacks from main memory in the place of a GPU."""

from __future__ import annotations

from collections import defaultdict

import torch

from tersor.kernels.runtime import readback


class Event:
    """An event of a device that works at once."""

    def record(self, stream) -> None:
        """Record nothing."""
        del stream

    def query(self) -> bool:
        """Return that all work is done."""
        return True

    def synchronize(self) -> None:
        """Wait for nothing."""


class DeviceTensor(torch.Tensor):
    """A tensor in main memory that claims to be on a GPU."""

    is_cuda = True  # type: ignore[assignment]


def main_memory_as_device(monkeypatch, event: type[Event] = Event) -> torch.device:
    """Let readbacks receive from main memory, starting without free ones."""
    empty = torch.empty

    def unpinned(nbytes, *, pin_memory=False, **options):
        del pin_memory
        return empty(nbytes, **options)

    monkeypatch.setattr(readback, "_free", defaultdict(list))
    monkeypatch.setattr(readback.torch, "empty", unpinned)
    monkeypatch.setattr(torch.cuda, "Event", event)
    monkeypatch.setattr(readback, "current_stream", lambda device: None)
    return torch.device("cpu")
