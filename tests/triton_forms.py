"""What Triton would compile for, seen in its interpreter, which compiles nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch

from tersor.kernels.runtime.gpu.launch import Kernel

Form = tuple[Any, ...]


@contextmanager
def recorded_forms() -> Iterator[set[Form]]:
    """Collect kernels with the types, alignments and constants they are launched for inside the block."""
    found: set[Form] = set()
    launch = Kernel._launch

    def recording(kernel: Any, grid: Any, *arguments: Any, **options: Any) -> None:
        jit = kernel._jit
        plain = set(jit.kwargs.get("do_not_specialize") or ())
        pairs = zip(jit.arg_names, arguments, strict=False)
        form = tuple(_form(value, is_plain=name in plain) for name, value in pairs)
        constants = tuple(sorted((name, str(value)) for name, value in options.items()))
        found.add((jit.fn.__module__, jit.fn.__name__, form, constants))
        launch(kernel, grid, *arguments, **options)

    with mock.patch.object(Kernel, "_launch", recording):
        yield found


def _form(value: Any, *, is_plain: bool) -> Any:
    """Return what Triton compiles anew for; its type alone where it does not specialize."""
    if type(value) is int:
        kind = "i32" if -(2**31) <= value < 2**31 else "i64"
        return kind if is_plain else "1" if value == 1 else (kind, value % 16 == 0)
    if isinstance(value, torch.Tensor):
        return value.dtype, is_plain or value.data_ptr() % 16 == 0
    if isinstance(value, tuple):
        return tuple(_form(one, is_plain=is_plain) for one in value)
    return value
