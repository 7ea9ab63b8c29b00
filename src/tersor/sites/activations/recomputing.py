"""Outputs that backward recomputes from the saved input of the same function.

GELU saves its input, and the linear layer behind it saves the output of GELU; norms do likewise. Half of what a
transformer saves follows from the other half, at the cost of one launch each. Only the inputs are therefore encoded,
and each is decoded once for both uses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from weakref import ReferenceType, ref

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tersor.sites.activations.autocast import autocast_disabled
from tersor.sites.activations.calls import Call
from tersor.sites.activations.entry import (
    Entry,
    MemoryLayout,
    SavedView,
    memory_key,
    memory_layout,
)
from tersor.sites.activations.origin import is_cast_of

RECOMPUTED: Final = frozenset(
    {"gelu", "silu", "mish", "hardswish", "leaky_relu", "layer_norm", "rms_norm"}
)
"""Functions that save their input and are deterministic bit for bit. Norms recompute their statistics."""
_MIN_OUTPUT_PER_WEIGHT: Final = 16
"""The weights of a norm are copied, which pays only if they are smaller than the output by this factor."""


class _Function(NamedTuple):
    """A function and its arguments other than the input, to compute an output again.

    Attributes:
        func: the function.
        args: positional arguments after the input.
        kwargs: named arguments.
    """

    func: Callable[..., torch.Tensor]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    @classmethod
    def of_call(cls, func: Callable[..., torch.Tensor], call: Call) -> _Function:
        """Record a call with copies of its weights, which ``fully_shard`` may free before backward.

        If autocast cast the input, the copies get the dtype of the cast, as autocast gave it to the function.
        """
        given = call.tensors[0].dtype
        dtype = given if call.source is None else call.source[1]
        args, kwargs = call.arguments_behind_first()

        def copied(x: Any) -> Any:
            if not isinstance(x, torch.Tensor):
                return x
            return x.detach().to(x.dtype if dtype == given else dtype, copy=True)

        return cls(func, [copied(x) for x in args], {k: copied(x) for k, x in kwargs.items()})

    @property
    def nbytes(self) -> int:
        """Size of the copied weights in bytes."""
        given = [*self.args, *self.kwargs.values()]
        return sum(x.nbytes for x in given if isinstance(x, torch.Tensor))

    def apply(self, source: torch.Tensor) -> torch.Tensor:
        """Apply the function to ``source``, as it was given it: autocast had cast that and the weights."""
        with torch.no_grad(), autocast_disabled(source.device.type):
            return self.func(source, *self.args, **self.kwargs)


class Recomputed(NamedTuple):
    """A form without memory: the values are recomputed from another saved tensor.

    Attributes:
        source: the input of the function, as saved for the function's own backward.
        making: computes the values from ``source``.
        dtype: dtype of the values; autocast may have saved the output in another dtype.
    """

    source: SavedView
    making: _Function
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Zero: the memory belongs to ``source``."""
        return 0

    def restored(self) -> torch.Tensor:
        """Return the values, flat, computed from the decoded input."""
        return memory_layout(self.making.apply(self.source.unpack()).to(self.dtype)).values


def saves_input(t: torch.Tensor, look: MemoryLayout, call: Call) -> bool:
    """True if ``t`` is the input, or autocast's copy of the input, of a call whose output can be recomputed.

    ``look`` is the memory layout of ``t``.
    """
    if call.name not in RECOMPUTED or not call.tensors:
        return False
    given = call.tensors[0]
    return t is given or is_cast_of(t, given) or memory_key(given) == look.key


class _Output(NamedTuple):
    """How to recompute an output; holds only weak references to its source and its storage."""

    source: ReferenceType[Entry]
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    making: _Function
    storage: StorageWeakRef


class Outputs:
    """The recomputable outputs of a forward pass, by memory layout; each is valid while its storage lives."""

    def __init__(self) -> None:
        """Start without outputs."""
        self._known: dict[Hashable, _Output] = {}

    def note(self, call: Call, func: Callable[..., Any], out: Any) -> None:
        """Register the output of a finished call if it can be recomputed from the input that the call saved."""
        if call.source is None or not isinstance(out, torch.Tensor):
            return
        entry, shape, stride = call.source[0]
        # an in-place function has overwritten its input
        is_new = call.tensors[0].untyped_storage().data_ptr() != out.untyped_storage().data_ptr()
        if not is_new or shape != tuple(out.shape) or stride != out.stride():
            return
        making = _Function.of_call(func, call)
        if making.nbytes * _MIN_OUTPUT_PER_WEIGHT <= out.nbytes:
            storage = StorageWeakRef(out.untyped_storage())
            made = _Output(ref(entry), shape, stride, making, storage)
            self._known[memory_key(out)] = made

    def find(self, t: torch.Tensor, look: MemoryLayout, call: Call | None) -> Recomputed | None:
        """Return how to recompute ``t``, saved for ``call``; None unless it is a registered output or its cast."""
        if not self._known:
            return None
        found = self._known.get(look.key)
        if found is None and call is not None and call.tensors and is_cast_of(t, call.tensors[0]):
            found = self._known.get(memory_key(call.tensors[0]))
        entry = None if found is None else found.source()
        if found is None or entry is None or found.storage.expired():
            return None
        return Recomputed(SavedView(entry, found.shape, found.stride), found.making, t.dtype)

    def clear(self) -> None:
        """Remove all outputs."""
        self._known.clear()
