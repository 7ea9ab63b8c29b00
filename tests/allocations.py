"""What a GPU's kernels would allocate, counted where Triton's interpreter runs them on CPU tensors."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tersor.kernels.runtime.op import backend_for


class DeviceAllocations(TorchDispatchMode):
    """Counts the memory of tensors that are made while the backend is ``gpu``.

    Attributes:
        nbytes: of those that are held.
        peak_nbytes: the most that were held at a time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.nbytes = self.peak_nbytes = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        made = func(*args, **(kwargs or {}))
        # Triton's interpreter takes tensors over with set_, without copying them
        if func is torch.ops.aten.set_.source_Storage_storage_offset:
            return made
        given = {storage._cdata for storage in _storages((args, kwargs))}
        for storage in _storages(made):
            if storage._cdata not in given | self._known.keys() and _is_for_gpu():
                self._known[storage._cdata] = storage.nbytes()
                self.nbytes += storage.nbytes()
                self.peak_nbytes = max(self.peak_nbytes, self.nbytes)
                weakref.finalize(storage, self._forget, storage._cdata)
        return made

    def _forget(self, key: int) -> None:
        self.nbytes -= self._known.pop(key)


def _storages(tree: Any) -> list[Any]:
    return [x.untyped_storage() for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _is_for_gpu() -> bool:
    return backend_for(torch.device("cpu")) == "gpu"
