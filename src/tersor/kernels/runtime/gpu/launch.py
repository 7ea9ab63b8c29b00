"""Launching a Triton kernel with little work for the host.

For every launch Triton looks at each argument and compares the global constants of the kernel and of all
functions it calls, which takes the host longer than a GPU takes for 64 MiB. A kernel compiled once for
arguments of some form can be launched directly.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

import torch
import triton

_INTERPRETED: Final = triton.knobs.runtime.interpret
_compiled: dict[tuple[Hashable, ...], Any] = {}


def launch(
    kernel: Any,
    num_programs: int,
    *arguments: Any,
    constants: dict[str, Any],
    num_warps: int,
) -> None:
    """Run ``num_programs`` programs of a kernel on the current device and stream.

    Floating-point operations are not fused, so that results have the bits of other backends.

    Args:
        kernel: made by ``triton.jit``; its compile-time constants are its last parameters.
        num_programs: size of the grid, at least 1.
        arguments: tensors, numbers, None, or tuples of them.
        constants: the compile-time constants by name, in the order of the parameters.
        num_warps: of a program.
    """
    if _INTERPRETED:
        kernel[(num_programs,)](*arguments, **constants)
        return
    forms = map(_form, arguments)
    key = (kernel, torch.cuda.current_device(), num_warps, *constants.values(), *forms)
    compiled = _compiled.get(key)
    if compiled is None:
        _compiled[key] = kernel[(num_programs,)](
            *arguments, **constants, num_warps=num_warps, enable_fp_fusion=False
        )
    else:
        compiled[num_programs, 1, 1](*arguments, *constants.values())


def _form(argument: Any) -> Hashable:
    """Return all that Triton compiles a kernel anew for."""
    if isinstance(argument, int):
        return (argument == 1) + 2 * (argument % 16 == 0) + 4 * (-(2**31) <= argument < 2**31)
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    return None if argument is None else tuple(map(_form, argument))
