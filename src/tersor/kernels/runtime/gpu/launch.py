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
    max_registers: int | None = None,
) -> None:
    """Run ``num_programs`` programs of a kernel on the current device and stream.

    Floating-point operations are not fused, so that results have the bits of other backends.

    Args:
        kernel: made by ``triton.jit``; its compile-time constants are its last parameters.
        num_programs: size of the grid, at least 1.
        arguments: tensors, whole numbers of 64 bits, None, or tuples of them.
        constants: the compile-time constants by name, in the order of the parameters.
        num_warps: of a program.
        max_registers: of a thread; None leaves it to the compiler.
    """
    if _INTERPRETED:
        kernel[(num_programs,)](*arguments, **constants)
        return
    key: list[Hashable] = [kernel, torch.cuda.current_device(), num_warps, max_registers]
    key += constants.values()
    addressed = [_addressed(argument, key) for argument in arguments]
    compiled = _compiled.get(tuple(key))
    if compiled is None:
        options = {"num_warps": num_warps, "maxnreg": max_registers, "enable_fp_fusion": False}
        _compiled[tuple(key)] = kernel[(num_programs,)](*arguments, **constants, **options)
    else:
        compiled[num_programs, 1, 1](*addressed, *constants.values())


def _addressed(argument: Any, key: list[Hashable]) -> Any:
    """Return an argument with addresses for tensors; add to ``key`` all that Triton compiles anew for.

    A tensor's device is part of it: Triton refuses one that its device cannot read, but no address.
    """
    if type(argument) is int:
        key.append((argument == 1) + 2 * (argument % 16 == 0) + 4 * (-(2**31) <= argument < 2**31))
        return argument
    if isinstance(argument, torch.Tensor):
        address = argument.data_ptr()
        key += (argument.dtype, argument.device, address % 16 == 0)
        return address
    if argument is None:
        key.append(None)
        return None
    if not isinstance(argument, tuple):
        raise TypeError(f"kernels take tensors, whole numbers and tuples, not {argument!r}")
    key.append(len(argument))
    return tuple(_addressed(one, key) for one in argument)
