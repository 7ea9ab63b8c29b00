"""Outputs that backward computes again from the input that the same function saved.

GELU saves its input, and the linear layer behind it saves its output; so do norms. Half of what a transformer saves follows
from the other half at the cost of one launch each. So only inputs are encoded, and decoded once for both.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from weakref import ReferenceType, ref

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tersor.sites.activations.calls import Call
from tersor.sites.activations.entry import Entry, Handle, Look, look_at
from tersor.sites.activations.origin import is_cast_of

RECOMPUTED: Final = frozenset(
    {"gelu", "silu", "mish", "hardswish", "leaky_relu", "layer_norm", "rms_norm"}
)
"""Functions that save their input before anything else, and give the same bits for the same input. Norms find their statistics
again: those of a decoded row differ from the exact ones by far less than its values do."""


class _Making(NamedTuple):
    """How an output was made of an input.

    Attributes:
        func: the function.
        args: its arguments behind the input.
        kwargs: its arguments by name.
    """

    func: Callable[..., torch.Tensor]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @classmethod
    def of_call(cls, func: Callable[..., torch.Tensor], call: Call) -> _Making:
        """Return it with weights as they are now: small, and ``fully_shard`` may free them before backward."""
        args, kwargs = call.arguments_behind_first()
        return cls(func, [_copied(x) for x in args], {k: _copied(x) for k, x in kwargs.items()})

    def again(self, source: torch.Tensor) -> torch.Tensor:
        """Return what the function gives of ``source``."""
        with torch.no_grad():
            return self.func(source, *self.args, **self.kwargs)


def _copied(x: Any) -> Any:
    return x.detach().clone() if isinstance(x, torch.Tensor) else x


class Recomputed(NamedTuple):
    """Values that a function gives of others, which are saved.

    Attributes:
        source: the input of the function, as it was saved for the function's own backward.
        making: what makes the values of it.
        dtype: of the values: autocast saves a copy of an output in another one.
    """

    source: Handle
    making: _Making
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Nothing: the memory is that of ``source``."""
        return 0

    def restored(self) -> torch.Tensor:
        """Return the values, flat, as the function gives them of what was decoded."""
        return look_at(self.making.again(self.source.unpack()).to(self.dtype)).values


class _Output(NamedTuple):
    """An output; neither its memory nor its source is kept alive by it."""

    source: ReferenceType[Entry]
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    making: _Making
    storage: StorageWeakRef


class Outputs:
    """What can be recomputed, by the memory of the outputs; an address counts only while its storage lives."""

    def __init__(self) -> None:
        """Start without any."""
        self._known: dict[Hashable, _Output] = {}

    def note(self, call: Call, func: Callable[..., Any], out: Any) -> None:
        """Remember the output of a call that is over, if it follows from a tensor that the call saved."""
        if call.name not in RECOMPUTED or not call.saved or not isinstance(out, torch.Tensor):
            return
        entry, shape, stride = call.saved[0]
        # a function in place has overwritten its input
        is_new = call.tensors[0].untyped_storage().data_ptr() != out.untyped_storage().data_ptr()
        if is_new and shape == tuple(out.shape) and stride == out.stride():
            storage = StorageWeakRef(out.untyped_storage())
            made = _Output(ref(entry), shape, stride, _Making.of_call(func, call), storage)
            self._known[look_at(out).key] = made

    def find(self, t: torch.Tensor, look: Look, call: Call | None) -> Recomputed | None:
        """Return how the values of ``t``, saved for ``call``, are computed; None if nobody knows."""
        found = self._known.get(look.key)
        if found is None and call is not None and call.tensors and is_cast_of(t, call.tensors[0]):
            found = self._known.get(look_at(call.tensors[0]).key)
        entry = None if found is None else found.source()
        if found is None or entry is None or found.storage.expired():
            return None
        return Recomputed(Handle(entry, found.shape, found.stride), found.making, t.dtype)

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()
