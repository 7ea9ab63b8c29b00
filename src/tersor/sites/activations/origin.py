"""The origin of a saved tensor: a parameter, a softmax, a function that makes zeros, or any other."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import torch

_VIEWS_AND_COPIES: Final = frozenset(
    {
        "View", "Transpose", "T", "Permute", "Expand", "Reshape", "ReshapeAlias", "UnsafeView",
        "Unsqueeze", "Squeeze", "Select", "Slice", "ToCopy", "Clone", "AsStrided", "Alias", "Split",
        "SplitWithSizes", "Unbind", "Detach", "Chunk",
    }
)  # fmt: skip
"""Functions that return a view or a copy of another tensor."""

_VIEWS: Final = frozenset({"View", "UnsafeView", "ReshapeAlias"})
"""View functions that keep the order of the values in memory."""

_SUM_TO_ONE: Final = frozenset({"Softmax", "LogSoftmax", "SafeSoftmax", "Logsumexp"})
_MAKE_ZEROS: Final = frozenset(
    {"Relu", "Threshold", "Hardtanh", "MaxPool2DWithIndices", "MaxPool3DWithIndices", "NativeDropout"}
)  # fmt: skip
PARAMETER: Final = "AccumulateGrad"


def origin_of(t: torch.Tensor) -> str:
    """Return autograd's name of the function that computed the values of ``t``, without ``Backward0``.

    Views and copies are traced to their source. The result is ``PARAMETER`` for a leaf that accumulates gradients
    and for views and casts of one, and empty for a constant.
    """
    if t.grad_fn is None:
        return PARAMETER if t.requires_grad else ""
    # a view of a parameter, whichever function made it
    base = t._base  # noqa: SLF001 - no public way
    if base is not None and base.grad_fn is None and base.requires_grad:
        return PARAMETER
    node: Any = t.grad_fn
    while node is not None:
        name = _short(node.name())
        if name not in _VIEWS_AND_COPIES:
            return name
        following = node.next_functions
        node = following[0][0] if following else None
    return ""


def is_cast_of(t: torch.Tensor, given: torch.Tensor) -> bool:
    """True if ``t`` is, or views all of, a copy of ``given`` in another dtype, such as autocast makes."""
    node: Any = t.grad_fn
    while node is not None and _short(node.name()) in _VIEWS:
        node = node.next_functions[0][0]
    if node is None or given.grad_fn is None or _short(node.name()) != "ToCopy":
        return False
    return node.next_functions[0][0] is given.grad_fn and t.numel() == given.numel()


def comes_from(t: torch.Tensor, given: torch.Tensor) -> bool:
    """True if ``t`` is a view or a copy of ``given``, by autograd's history, which constants do not have."""
    node: Any = t.grad_fn
    while node is not None:
        if node is given.grad_fn:
            return True
        name = _short(node.name())
        if name == PARAMETER:
            return node.variable is given
        if name not in _VIEWS_AND_COPIES or not node.next_functions:
            return False
        node = node.next_functions[0][0]
    return False


def has_own_memory(t: torch.Tensor) -> bool:
    """True if a tensor of origin ``PARAMETER`` is the parameter or a view of it, not a copy such as autocast makes."""
    if t.grad_fn is None:
        return True
    base = t._base  # noqa: SLF001 - no public way
    return base is not None and base.grad_fn is None


@lru_cache(maxsize=1024)
def _short(name: str) -> str:
    return name.rsplit("::", 1)[-1].split("Backward", 1)[0]


def sums_to_one(origin: str) -> bool:
    """True for probabilities, their logarithms and normalisers, which are inconsistent with independent errors."""
    return origin in _SUM_TO_ONE


def makes_zeros(origin: str) -> bool:
    """True if zeros among the values mark where no gradient flows."""
    return origin in _MAKE_ZEROS
