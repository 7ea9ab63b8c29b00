"""Tensors without values of their own: those that torch traces, transforms or only describes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final

import torch

from tersor.errors import SpecError, TersorError

_Asks = tuple[Callable[[torch.Tensor], bool], Callable[[], bool], Callable[[], bool]]


def _private_asks() -> _Asks:
    """Return functions that tell if a tensor is inside a transform, if code is, and if it is inside ``FakeTensorMode``.

    No public function of torch does. Where a torch has others, they tell nothing, and torch's own errors appear.
    """
    try:
        from torch._C import _get_dispatch_mode, _TorchDispatchModeKey
        from torch._C._functorch import is_functorch_wrapped_tensor, maybe_current_level
    except ImportError:
        return (lambda _: False), (lambda: False), (lambda: False)
    return (
        is_functorch_wrapped_tensor,
        lambda: maybe_current_level() is not None,
        lambda: _get_dispatch_mode(_TorchDispatchModeKey.FAKE) is not None,
    )


_is_transformed, _is_inside_transform, _is_fake_mode = _private_asks()

_IN_GRAPHS: Final = "tersor.GraphCodec encodes and decodes inside compiled code"
_TRANSFORMED: Final = (
    "tensors inside vmap, grad and other transforms of torch.func have no memory of their own; call tersor outside of the "
    "transform"
)
_FAKE_MODE: Final = f"FakeTensorMode computes no values to compress; leave it first ({_IN_GRAPHS})"


def refuse_fake(kind: type) -> None:
    """Raise ``SpecError`` if this is the class of fake tensors."""
    # by name, because the import takes long
    if any(base.__name__ == "FakeTensor" for base in kind.__mro__):
        raise SpecError(
            f"a fake tensor, of torch.compile, torch.export or FakeTensorMode, has no values; {_IN_GRAPHS}"
        )


def refuse_transformed(tensors: Sequence[torch.Tensor]) -> None:
    """Raise ``SpecError`` for tensors inside a transform of ``torch.func``, and inside ``FakeTensorMode``.

    It takes a microsecond: call it where lists are checked once.
    """
    if any(map(_is_transformed, tensors)):
        raise SpecError(_TRANSFORMED)
    if _is_fake_mode():
        raise SpecError(_FAKE_MODE)


def explain_traced(error: BaseException) -> None:
    """Raise ``SpecError`` from an error that torch raised because it traces or transforms tensors here."""
    if isinstance(error, TersorError):
        return
    if _is_inside_transform():
        raise SpecError(_TRANSFORMED) from error
    if _is_fake_mode():
        raise SpecError(_FAKE_MODE) from error
    if _passed_dynamo(error):
        raise SpecError(
            f"torch.compile cannot trace tersor's functions; call them outside of the compiled function: {_IN_GRAPHS}"
        ) from error


def _passed_dynamo(error: BaseException) -> bool:
    """Whether dynamo raised an error, or passed it on."""
    if "torch._dynamo" not in sys.modules:
        return False
    place = error.__traceback__
    while place is not None:
        name = str(place.tb_frame.f_globals.get("__name__", ""))
        # ``eval_frame`` also runs what is excluded from tracing
        if name.startswith("torch._dynamo") and name != "torch._dynamo.eval_frame":
            return True
        place = place.tb_next
    return False
