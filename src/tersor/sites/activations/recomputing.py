"""Outputs that backward computes again from the input that the same function saved.

GELU saves its input, and the linear layer behind it saves its output: two of the largest tensors of a transformer, of which
one follows from the other at the cost of one pointwise launch. So only the input is encoded, and decoded once for both.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from weakref import ReferenceType, ref

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tersor.sites.activations.calls import Call
from tersor.sites.activations.entry import Entry, Handle, look_at

RECOMPUTED: Final = frozenset({"gelu", "silu", "mish", "hardswish", "leaky_relu"})
"""Pointwise functions that save their input, and nothing else."""


class Recomputed(NamedTuple):
    """Values that a pointwise function gives of others, which are saved.

    Attributes:
        source: the input of the function, as it was saved for the function's own backward.
        func: the function.
        args: its arguments behind the input.
        kwargs: its arguments by name.
    """

    source: Handle
    func: Callable[..., torch.Tensor]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @property
    def nbytes(self) -> int:
        """Nothing: the memory is that of ``source``."""
        return 0

    def restored(self) -> torch.Tensor:
        """Return the values, flat, as the function gives them of what was decoded."""
        with torch.no_grad():
            out = self.func(self.source.unpack(), *self.args, **self.kwargs)
        return look_at(out).values


class _Output(NamedTuple):
    """How an output was made; neither its memory nor its source is kept alive by it."""

    source: ReferenceType[Entry]
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    func: Callable[..., torch.Tensor]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    storage: StorageWeakRef


class Outputs:
    """What can be recomputed, by the memory of the outputs; an address counts only while its storage lives."""

    def __init__(self) -> None:
        """Start without any."""
        self._known: dict[Hashable, _Output] = {}

    def note(self, call: Call, func: Callable[..., Any], out: Any) -> None:
        """Remember the output of a call that is over, if it follows from one tensor that the call saved."""
        if call.name not in RECOMPUTED or len(call.saved) != 1 or not isinstance(out, torch.Tensor):
            return
        entry, shape, stride = call.saved[0]
        # a function in place has overwritten its input
        is_new = call.tensors[0].untyped_storage().data_ptr() != out.untyped_storage().data_ptr()
        if is_new and shape == tuple(out.shape) and stride == out.stride():
            args, kwargs = call.arguments_behind_first()
            storage = StorageWeakRef(out.untyped_storage())
            made = _Output(ref(entry), shape, stride, func, args, kwargs, storage)
            self._known[look_at(out).key] = made

    def find(self, key: Hashable) -> Recomputed | None:
        """Return how the values of this memory are computed; None if nobody knows."""
        found = self._known.get(key)
        entry = None if found is None else found.source()
        if found is None or entry is None or found.storage.expired():
            return None
        source = Handle(entry, found.shape, found.stride)
        return Recomputed(source, found.func, found.args, found.kwargs)

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()
