"""The function that a tensor is saved for, and whether its backward tolerates an error in that tensor.

Only the functions listed here get lossy tensors. All others get exact ones: softmax and losses, whose saved
values must sum to one; divisions, roots and logarithms, which turn a small error into a large one; and unknown
functions, such as those of ``torch.autograd.Function`` and of compiled code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from tersor.sites.activations.clamping import CLAMPS, Limits
from tersor.sites.activations.entry import Entry, SavedView
from tersor.sites.activations.origin import comes_from
from tersor.sites.activations.pooling import PoolingWindows

WEIGHTED: Final = frozenset(
    {"linear"} | {f"conv{n}d" for n in (1, 2, 3)} | {f"conv_transpose{n}d" for n in (1, 2, 3)}
)
"""Functions of an input and a weight. Only the saved input is lossy, never the weight."""

_NORMS: Final = frozenset({"batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm"})
"""Norms, whose statistics stay exact. Recomputed from the decoded input, statistics would spread its errors over
a whole row; with exact ones each value is off by its own error only."""

_POINTWISE: Final = frozenset(
    {
        "gelu", "silu", "mish", "leaky_relu", "elu", "celu", "selu", "hardswish", "hardsigmoid",
        "softplus", "prelu",
    }
)  # fmt: skip
"""Functions whose derivative is computed from the saved input."""

_SIGNED: Final = frozenset({"leaky_relu", "prelu", "elu", "celu", "selu"})
"""Pointwise functions with another slope below zero. Rounded to zero, small values would get the wrong one."""

_ALL_LOSSY: Final = frozenset(
    {
        "relu", "relu_", "tanh", "sigmoid", "glu",
        "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "addmm", "baddbmm", "einsum",
    }
)  # fmt: skip
"""Functions whose saved tensors may all be lossy, outputs included."""

_PRODUCTS: Final = frozenset({"mul", "mul_", "multiply", "__mul__", "__rmul__", "__imul__"})
"""Products, likewise, except for a factor much smaller than the product, such as a statistic or a channel gate."""

DROPOUTS: Final = frozenset(
    {"dropout", "dropout_", "feature_dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout"}
)  # fmt: skip

_POOLING_DIMS: Final = {
    f"{prefix}max_pool{n}d{suffix}": n
    for n in (1, 2, 3)
    for prefix in ("", "adaptive_")
    for suffix in ("", "_with_indices")
} | {f"{prefix}avg_pool{n}d": n for n in (1, 2, 3) for prefix in ("", "adaptive_")}
"""Pooling functions and their number of dimensions. Backward needs the layout of the input, not its values."""

ATTENTION: Final = "scaled_dot_product_attention"
_LOSSY_IN_ATTENTION: Final = 3
"""Attention saves q, k and v, then its mask or bias. Next to values that mask, an error in these is fatal."""
RELUS: Final = frozenset({"relu", "relu_"})
"""Functions whose saved output needs only its zeros, which some codecs keep exact."""
_FIRST_ONLY: Final = WEIGHTED | _NORMS | _POINTWISE
SMALL_FACTOR: Final = 8
"""A factor this much smaller than its product is exact, as it is a statistic or a gate."""


class Call:
    """A running call of a torch function.

    Attributes:
        name: name of the function.
        coded: entries of the lossy tensors saved for it so far.
        num_saved: number of tensors saved for it so far.
        source: the handle of its first argument and the dtype it was saved in, if it was saved with an error and
            the output can be recomputed from it; else None.
    """

    __slots__ = ("_args", "_found", "_kwargs", "coded", "name", "num_saved", "source")

    def __init__(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Record the call; must be cheap, because every torch function passes through here."""
        self.name: str = getattr(func, "__name__", "")
        self._args, self._kwargs = args, kwargs
        self._found: list[torch.Tensor] | None = None
        self.coded: list[Entry] = []
        self.num_saved = 0
        self.source: tuple[SavedView, torch.dtype] | None = None

    def arguments_behind_first(self) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the positional and named arguments without the first one, whose name is ``input``."""
        if self._args:
            return self._args[1:], self._kwargs
        return (), {k: x for k, x in self._kwargs.items() if k != "input"}

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the arguments, in order; those in lists and tuples included."""
        if self._found is None:
            given = [*self._args, *self._kwargs.values()]
            # such as the operands of einsum
            flat = [y for x in given for y in (x if isinstance(x, (list, tuple)) else [x])]
            self._found = [x for x in flat if isinstance(x, torch.Tensor)]
        return self._found

    @property
    def records(self) -> bool:
        """True if autograd records the call."""
        return torch.is_grad_enabled() and any(x.requires_grad for x in self.tensors)

    @property
    def needs_signs(self) -> bool:
        """True if its backward depends on the signs of what it saves, which codecs with exact zeros keep."""
        return self.name in _SIGNED

    @property
    def is_pooling(self) -> bool:
        """True if backward needs only the shape of the input, not its values."""
        return self.name in _POOLING_DIMS

    def limits(self) -> Limits | None:
        """Return the limits between which gradients pass; None if this is not one of ``CLAMPS``."""
        return Limits.of_call(self.name, self._args, self._kwargs) if self.name in CLAMPS else None

    def windows(self) -> PoolingWindows | None:
        """Return the windows of a max-pooling call; None if they are irregular or this is another function."""
        if not self.name.startswith("max_pool"):
            return None
        return PoolingWindows.of_call(_POOLING_DIMS[self.name], self._args, self._kwargs)

    def allows_error(self, t: torch.Tensor, *, is_constant: bool) -> bool:
        """True if ``t``, saved for this call, may be decoded with an error.

        Args:
            t: a floating-point tensor that is not a parameter.
            is_constant: True if no gradient flows to it.
        """
        name = self.name
        if name in _FIRST_ONLY:
            is_first = bool(self._args) and t is self._args[0]
            # autocast saves a copy of the input in another memory, so only the sizes can be compared
            return is_first or (self._has_size_of_first(t) and not self._is_other_argument(t))
        if name == ATTENTION:
            return not is_constant and self.num_saved <= _LOSSY_IN_ATTENTION
        if name not in _ALL_LOSSY and name not in _PRODUCTS:
            return False
        if is_constant and not any(x.is_leaf and x.requires_grad for x in self.tensors):
            # The constant is a factor of the gradient that flows on, like a weight, and must be exact. If a leaf is
            # another argument, the constant is needed for the gradient of that leaf only.
            return False
        if name in _PRODUCTS:
            return t.numel() * SMALL_FACTOR > max(x.numel() for x in self.tensors)
        return True

    def _has_size_of_first(self, t: torch.Tensor) -> bool:
        tensors = self.tensors
        return bool(tensors) and t.numel() == tensors[0].numel()

    def _is_other_argument(self, t: torch.Tensor) -> bool:
        """True unless ``t`` is certain not to be, or to be a copy of, another argument than the first."""
        address = t.untyped_storage().data_ptr()
        first, *others = self.tensors
        if address == first.untyped_storage().data_ptr():
            return False
        if any(address == x.untyped_storage().data_ptr() or comes_from(t, x) for x in others):
            return True
        # The copy of a constant, such as of a frozen weight, has no history.
        is_constant = t.grad_fn is None and self.name in WEIGHTED
        return is_constant and (
            first.requires_grad
            or any(x.numel() == t.numel() for x in others if not x.requires_grad)
        )
