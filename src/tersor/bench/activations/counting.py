"""Count what autograd saves for backward while a forward pass runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from tersor.sites.activations.forms import dense_parts


class SavedCount:
    """Bytes of all saved storages that are still alive, each counted once.

    A storage counts as floating-point if any floating-point tensor views it.
    """

    def __init__(self, model: nn.Module, batch: Iterable[torch.Tensor]) -> None:
        """Exclude a model's parameters and buffers and its batch, which stay in memory anyway."""
        tensors = [*model.parameters(), *model.buffers(), *batch]
        parts = (part for t in tensors for part in dense_parts(t))
        self._own = {part.untyped_storage().data_ptr() for part in parts}
        self._seen: list[tuple[StorageWeakRef, int, int, bool]] = []

    def add(self, t: torch.Tensor) -> None:
        """Count one saved tensor."""
        for part in dense_parts(t):
            storage = part.untyped_storage()
            if storage.data_ptr() not in self._own:
                facts = (storage.data_ptr(), storage.nbytes(), part.is_floating_point())
                self._seen.append((StorageWeakRef(storage), *facts))

    @property
    def nbytes(self) -> int:
        """Bytes of all storages that are alive."""
        return sum(nbytes for nbytes, _ in self._alive().values())

    @property
    def floats_nbytes(self) -> int:
        """Bytes of the living storages of floating-point tensors."""
        return sum(nbytes for nbytes, is_float in self._alive().values() if is_float)

    def _alive(self) -> dict[int, tuple[int, bool]]:
        found: dict[int, tuple[int, bool]] = {}
        # if two storages had the same address, at most one of them is alive
        for storage, address, nbytes, is_float in self._seen:
            if not storage.expired():
                found[address] = nbytes, is_float or found.get(address, (0, False))[1]
        return found


@contextmanager
def counting_saved(model: nn.Module, batch: Iterable[torch.Tensor]) -> Iterator[SavedCount]:
    """Count what the forward pass in the block saves, without changing it."""
    count = SavedCount(model, batch)

    def pack(t: torch.Tensor) -> torch.Tensor:
        count.add(t)
        # saving the tensor itself would keep its graph alive
        return t.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        yield count
