"""One kernel launch and one copy, the least time in which a list of small tensors can be handled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.utils.weak import WeakIdKeyDictionary

from tersor.bench.core.graphs import Replays
from tersor.bench.peers.peer import Peer


@dataclass(frozen=True, slots=True)
class Joined:
    """Three buffers with the concatenated values of a list, and views of the last one as the list."""

    source: torch.Tensor
    copied: torch.Tensor
    decoded: torch.Tensor
    views: list[torch.Tensor]

    @classmethod
    def of(cls, xs: Sequence[torch.Tensor]) -> Joined:
        """Concatenate contiguous tensors."""
        source = torch.cat([x.reshape(-1) for x in xs])
        decoded = source.clone()
        parts = decoded.split([x.numel() for x in xs])
        views = [part.view(x.shape) for part, x in zip(parts, xs, strict=True)]
        return cls(source, source.clone(), decoded, views)


class LaunchCopy(Peer):
    """A kernel that increments one number, then one ``copy_`` of all slices, joined beforehand."""

    name = "launch-copy"
    distribution = "torch"
    bounded = False
    exact = True
    note = "one launch of a kernel on one value, and one copy of all bytes"

    def __init__(self) -> None:
        """Start without buffers; the first call on a list allocates them."""
        super().__init__()
        # keyed by the first tensor and dropped with it, because other lists may reuse its memory
        self._lists = WeakIdKeyDictionary()
        self._numbers: dict[torch.device, torch.Tensor] = {}

    def _launch_and_copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        device = source.device
        if device not in self._numbers:
            self._numbers[device] = torch.zeros(1, device=device)
        self._numbers[device].add_(1.0)
        target.copy_(source)

    def encode_all(self, xs: Sequence[torch.Tensor], error_bounds: Sequence[float]) -> Joined:
        """Launch and copy; new lists are joined first, which happens outside of timed rounds."""
        del error_bounds
        joined: Joined | None = self._lists.get(xs[0])
        if joined is None:
            joined = self._lists[xs[0]] = Joined.of(xs)
        self._launch_and_copy(joined.source, joined.copied)
        return joined

    def decode_all(self, encoded: Joined, outs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Launch and copy; return views of the copy, made earlier so that they are not timed."""
        del outs
        self._launch_and_copy(encoded.copied, encoded.decoded)
        return encoded.views

    def total_nbytes(self, encoded: Joined) -> int:
        """Return the bytes of all slices."""
        return encoded.copied.nbytes


class LaunchCopyGraph(LaunchCopy):
    """``LaunchCopy``, captured in a CUDA graph and replayed."""

    name = "launch-copy-graph"
    note = f"{LaunchCopy.note}; replayed as a CUDA graph"

    def __init__(self) -> None:
        """See ``LaunchCopy``."""
        super().__init__()
        self._replays = Replays()

    def _launch_and_copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        eager = super()._launch_and_copy
        self._replays.call("copy", [source, target], lambda: eager(source, target))
