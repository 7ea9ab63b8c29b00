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
"""Functions that save their input, and give the same bits for the same input. Norms find their statistics again."""
_MOST_WEIGHTS: Final = 16
"""Weights of a norm are copied: their bytes must be fewer than those of the output by this factor."""


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
        """Return it with weights as they are now: ``fully_shard`` may free them before backward.

        Autocast gave the function weights in the dtype that it gave it the input in.
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
        """Memory that the copies of weights take."""
        given = [*self.args, *self.kwargs.values()]
        return sum(x.nbytes for x in given if isinstance(x, torch.Tensor))

    def again(self, source: torch.Tensor) -> torch.Tensor:
        """Return what the function gives of ``source``."""
        with torch.no_grad():
            return self.func(source, *self.args, **self.kwargs)


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


def saves_input(t: torch.Tensor, look: Look, call: Call) -> bool:
    """True if ``t``, which looks so, is the input of a function that can be computed again, or autocast's copy of it."""
    if call.name not in RECOMPUTED or not call.tensors:
        return False
    given = call.tensors[0]
    return is_cast_of(t, given) or look_at(given).key == look.key


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
        """Remember the output of a call that is over, if it follows from its input, which it saved with an error."""
        if call.source is None or not isinstance(out, torch.Tensor):
            return
        entry, shape, stride = call.source[0]
        # a function in place has overwritten its input
        is_new = call.tensors[0].untyped_storage().data_ptr() != out.untyped_storage().data_ptr()
        if not is_new or shape != tuple(out.shape) or stride != out.stride():
            return
        making = _Making.of_call(func, call)
        if making.nbytes * _MOST_WEIGHTS <= out.nbytes:
            storage = StorageWeakRef(out.untyped_storage())
            made = _Output(ref(entry), shape, stride, making, storage)
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
