"""A torch function mode that tells an open context which function is running."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, Final, Protocol, TypeVar, cast

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_F = TypeVar("_F", bound=Callable[..., Any])


def _found_frame_callback() -> Callable[[], object] | None:
    """Return dynamo's function for the callback that watches this thread; None if this torch has none there."""
    try:
        from torch._C._dynamo.eval_frame import get_eval_frame_callback
    except ImportError:
        return None
    found: Callable[[], object] = get_eval_frame_callback
    return found


_frame_callback: Final = _found_frame_callback()


def untraced(function: _F) -> _F:
    """Exclude a function from compilation by dynamo, which would otherwise trace the tensor operations of hooks.

    The function is called directly unless dynamo, which takes seconds to import, is loaded and watches this thread.
    Optimizers load it, so most trainings have it loaded without compiling anything; excluding takes 4 to 8 us, and every
    saved tensor passes two such functions.
    """

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _dynamo_watches():
            return function(*args, **kwargs)
        # made anew each time: dynamo of torch 2.11 warns of what a traced function stores
        return torch.compiler.disable(function)(*args, **kwargs)

    return cast("_F", call)


def _dynamo_watches() -> bool:
    """True unless it is certain that dynamo neither traces this call nor watches this thread."""
    # while dynamo traces, the answer to this is True; the next question it could not trace
    if torch.compiler.is_dynamo_compiling():
        return True
    if "torch._dynamo" not in sys.modules:
        return False
    return _frame_callback is None or _frame_callback() is not None


class CallReceiver(Protocol):
    """Receives every torch function call."""

    @property
    def is_innermost(self) -> bool:
        """True unless other hooks of saved tensors were installed inside the context."""
        ...

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a torch function."""
        ...


def _transparent(func: Any) -> Any:
    """Return a copy of a Python function of torch of which modes intercept only the inner calls."""
    open_names = {**func.__globals__, "has_torch_function": lambda *_: False}
    made = FunctionType(func.__code__, open_names, func.__name__, func.__defaults__)
    made.__kwdefaults__ = func.__kwdefaults__
    return made


SEEN_THROUGH: Final = {
    functional.multi_head_attention_forward: _transparent(functional.multi_head_attention_forward)
}
"""Functions that a mode would intercept as a whole, although they consist of others, and their open copies."""


class CallMode(TorchFunctionMode):
    """Passes every call of a torch function to a region."""

    def __init__(self, region: CallReceiver) -> None:
        """Take the region to pass calls to."""
        super().__init__()
        self._region = region

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let the region call the function, so that its hooks know which function saves a tensor."""
        kwargs = kwargs or {}
        # compiled code saves its tensors when it ends, not function by function
        if torch.compiler.is_compiling() or not self._region.is_innermost:
            return func(*args, **kwargs)
        if func in SEEN_THROUGH:
            with self:
                return SEEN_THROUGH[func](*args, **kwargs)
        return self._region.run(func, args, kwargs)
