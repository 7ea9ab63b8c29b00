"""Which torch function runs while a context is open."""

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


def untraced(function: _F) -> _F:
    """Run a function as it is where code around it is compiled: dynamo would trace what hooks do with tensors.

    Without dynamo, which takes seconds to import, nothing is changed.
    """
    made: list[Any] = []

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        if not made:
            made.append(torch.compiler.disable(function))
        return made[0](*args, **kwargs)

    return cast("_F", call)


class Watched(Protocol):
    """Calls torch functions in its own way."""

    @property
    def is_innermost(self) -> bool:
        """True unless others hook saved tensors inside the context."""
        ...

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a torch function."""
        ...


def _transparent(func: Any) -> Any:
    """Return a function of torch written in Python that does not hand itself to modes, only what it calls."""
    open_names = {**func.__globals__, "has_torch_function": lambda *_: False}
    made = FunctionType(func.__code__, open_names, func.__name__, func.__defaults__)
    made.__kwdefaults__ = func.__kwdefaults__
    return made


SEEN_THROUGH: Final = {
    functional.multi_head_attention_forward: _transparent(functional.multi_head_attention_forward)
}
"""Functions that consist of others: modes would see only the whole."""


class Watch(TorchFunctionMode):
    """Tells a region which function is running, and replaces attention by one that saves less."""

    def __init__(self, region: Watched) -> None:
        """Take the region to tell."""
        super().__init__()
        self._region = region

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function; the hooks find out from the region for what they are called."""
        kwargs = kwargs or {}
        # compiled code saves its tensors at its end, for no function that we could see
        if torch.compiler.is_compiling() or not self._region.is_innermost:
            return func(*args, **kwargs)
        if func in SEEN_THROUGH:
            with self:
                return SEEN_THROUGH[func](*args, **kwargs)
        return self._region.run(func, args, kwargs)
