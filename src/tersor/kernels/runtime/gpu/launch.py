"""Launch Triton kernels with little work for the host.

At every launch Triton inspects each argument and compares the global constants of the kernel and of all
functions it calls: half of the host's time for a list of look-ups (docs/decisions/0007-gpu-kernels.md). A
kernel already compiled for arguments of one form can be launched directly.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
import triton

from tersor.kernels.runtime.device_cache import raw_stream
from tersor.kernels.runtime.gpu.compile_events import first_launch
from tersor.kernels.runtime.recording import log_launch

_INTERPRETED: Final = triton.knobs.runtime.interpret
_hooks: Final[Any] = triton.knobs.runtime
_HAS_KNOWN_RUN: Final = tuple(map(int, triton.__version__.split(".")[:2])) in ((3, 6), (3, 7))
"""Whether compiled kernels have the ``run`` signature used below; others go through Triton's public API."""


class Kernel:
    """A Triton kernel, launched as ``kernel[grid](*arguments, **options)``.

    It runs on the current device and stream. Arguments are tensors, 64-bit integers, None, or tuples of
    them. Options are the compile-time constants, which must be the kernel's last parameters, and Triton's
    launch options, such as ``num_warps`` and ``maxnreg``. Floating-point operations are not fused, because
    results must match those of other backends bit for bit.

    Attributes:
        parameters: names of the parameters that are no compile-time constants.
        wide_parameters: those of them that are annotated as ``tl.int64``. Others are compiled as int32 or int64, by the
            first number that they get.
    """

    def __init__(self, function: Callable[..., None], **options: Any) -> None:
        """Wrap a function with options of ``triton.jit``.

        Raises:
            TypeError: a compile-time constant comes before an argument.
        """
        self._jit: Any = triton.jit(function, **options)
        parameters = inspect.signature(function).parameters.values()
        is_constant = ["constexpr" in str(one.annotation) for one in parameters]
        if is_constant != sorted(is_constant):
            raise TypeError(f"constants must be the last parameters of {function.__name__}")
        self._num_arguments = is_constant.count(False)
        names = [one.name for one in parameters]
        self.parameters, self._constants = (
            names[: self._num_arguments],
            names[self._num_arguments :],
        )
        self.wide_parameters = [
            one.name for one in parameters if str(one.annotation).endswith("int64")
        ]
        self._compiled: dict[tuple[Hashable, ...], tuple[Any, tuple[Any, ...]]] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        """Return a launcher for a grid of up to three dimensions, each at least 1."""
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        if len(arguments) != self._num_arguments:
            raise TypeError(f"{self._num_arguments} arguments go by position, not {len(arguments)}")
        log_launch(self, grid, arguments, options)
        if _INTERPRETED:
            self._jit[grid](*arguments, **options)
            return
        form, addressed = _form_of(arguments, options)
        found = self._compiled.get(form)
        if found is None:
            with first_launch():
                compiled = self._jit[grid](*arguments, **options, enable_fp_fusion=False)
            constants = tuple(options[name] for name in self._constants)
            self._compiled[form] = compiled, constants
            return
        _run(*found, (*grid, 1, 1)[:3], addressed)

    def prepared(
        self, grid: tuple[int, ...], arguments: Sequence[Any], options: Mapping[str, Any]
    ) -> Callable[[list[Any]], None] | None:
        """Return a function that repeats a launch that was made on the current device, on its current stream.

        It takes the arguments, with addresses for tensors. Numbers that do not fit in 32 bits are cut off, unless the
        recorded number did not fit either or the parameter is in ``wide_parameters``. It is None in Triton's interpreter.
        """
        if _INTERPRETED:
            return None
        form, _ = _form_of(arguments, options)
        return partial(_run, *self._compiled[form], (*grid, 1, 1)[:3])


def _form_of(
    arguments: Sequence[Any], options: Mapping[str, Any]
) -> tuple[tuple[Hashable, ...], list[Any]]:
    """Return what a launch on the current device is compiled for, and its arguments with addresses for tensors."""
    key: list[Hashable] = [torch.cuda.current_device(), *options, *options.values()]
    addressed = _addressed(arguments, key)
    return tuple(key), addressed


def _run(
    compiled: Any, constants: tuple[Any, ...], grid: tuple[int, ...], addressed: list[Any]
) -> None:
    """Launch a compiled kernel on the current stream of the current device."""
    if not _HAS_KNOWN_RUN or _has_hooks():
        compiled[grid](*addressed, *constants)
        return
    # what ``compiled[grid]`` does without hooks, in 6 us instead of 10
    compiled.run(
        *grid, raw_stream(torch.cuda.current_device()), compiled.function, compiled.packed_metadata, None, None, None,
        *addressed, *constants,
    )  # fmt: skip


def jit_kernel(**options: Any) -> Callable[[Callable[..., None]], Kernel]:
    """Return a decorator that makes a ``Kernel`` of a function, with options of ``triton.jit``."""
    return partial(Kernel, **options)


def _has_hooks() -> bool:
    """True if launch hooks are installed, for instance by a profiler."""
    enter, leave = _hooks.launch_enter_hook, _hooks.launch_exit_hook
    # hook chains, which may be empty; a Triton without chains has a function or None
    return bool(getattr(enter, "calls", enter) or getattr(leave, "calls", leave))


def _addressed(arguments: Sequence[Any], key: list[Hashable]) -> list[Any]:
    """Replace tensors by their addresses; append to ``key`` everything that Triton specialises on.

    The key includes each tensor's device: Triton rejects a tensor that its device cannot read, but would
    accept its address.
    """
    found: list[Any] = []
    for argument in arguments:
        if type(argument) is int:
            is_wide = not -(2**31) <= argument < 2**31
            key.append((argument == 1) + 2 * (argument % 16 == 0) + 4 * is_wide)
            found.append(argument)
        elif isinstance(argument, torch.Tensor):
            address = argument.data_ptr()
            key += (argument.dtype, argument.device, address % 16 == 0)
            found.append(address)
        elif argument is None:
            key.append(None)
            found.append(None)
        elif isinstance(argument, tuple):
            key.append(len(argument))
            found.append(tuple(_addressed(argument, key)))
        else:
            raise TypeError(
                f"kernels take tensors, whole numbers and tuples, not {argument!r}; give constants by name"
            )
    return found
