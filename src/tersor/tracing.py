"""Tensors without values of their own: those that torch traces, transforms or only describes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import torch

# private, but the public functions of torch.func do not tell where they are running
from torch._C import _get_dispatch_mode, _TorchDispatchModeKey
from torch._C._functorch import is_functorch_wrapped_tensor, maybe_current_level

from tersor.errors import SpecError, TersorError

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
    if any(map(is_functorch_wrapped_tensor, tensors)):
        raise SpecError(_TRANSFORMED)
    if _is_fake_mode():
        raise SpecError(_FAKE_MODE)


def explain_traced(error: BaseException) -> None:
    """Raise ``SpecError`` from an error that torch raised because it traces or transforms tensors here."""
    if isinstance(error, TersorError):
        return
    if maybe_current_level() is not None:
        raise SpecError(_TRANSFORMED) from error
    if _is_fake_mode():
        raise SpecError(_FAKE_MODE) from error
    if _passed_dynamo(error):
        raise SpecError(
            f"torch.compile cannot trace tersor's functions; call them outside of the compiled function: {_IN_GRAPHS}"
        ) from error


def _is_fake_mode() -> bool:
    return _get_dispatch_mode(_TorchDispatchModeKey.FAKE) is not None


def _passed_dynamo(error: BaseException) -> bool:
    """Whether dynamo raised an error, or passed it on."""
    if "torch._dynamo" not in sys.modules:
        return False
    place = error.__traceback__
    while place is not None:
        if str(place.tb_frame.f_globals.get("__name__", "")).startswith("torch._dynamo"):
            return True
        place = place.tb_next
    return False
