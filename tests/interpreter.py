"""Triton's interpreter, made many times faster.

It patches ``triton.language`` anew for every call from one kernel function to another; once per launch is
enough. It builds a table of all types to look up one of them, computes whether integers overflow and
drops the answer, reduces by functions other than the most common ones value by value, and makes the
numbers in the shape of every result anew. How operators convert and spread their operands it finds out
for each call, where ``interpreter_plans.py`` finds it out once. Where a version of Triton has other
insides, it stays as it is.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from tests.interpreter_plans import plan_operators, spread_known_shapes


def speed_up() -> None:
    """Make the interpreter faster for the rest of the process."""
    patch_once_per_launch()
    look_types_up_once()
    skip_overflow_checks()
    reduce_in_halves()
    share_shapes()
    plan_operators()
    spread_known_shapes()


def patch_once_per_launch() -> None:
    """Replace how interpreted functions call each other, for the rest of the process."""
    from triton import language
    from triton.runtime import interpreter

    patch_language = getattr(interpreter, "_patch_lang", None)
    interpreted = getattr(interpreter, "InterpretedFunction", None)
    if patch_language is None or not hasattr(interpreted, "rewrite"):
        return
    patched: set[frozenset[int]] = set()

    @cache
    def languages_of(function: Any) -> frozenset[int]:
        seen = [value for value in function.__globals__.values() if inspect.ismodule(value)]
        return frozenset(id(module) for module in seen if module in (language, language.core))

    def patch_at_launch(function: Any) -> Any:
        patched.clear()
        scope = patch_language(function)
        patched.add(languages_of(function))
        return scope

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if languages_of(self.fn) not in patched:
            patch_language(self.fn)
            patched.add(languages_of(self.fn))
        try:
            return self.rewrite()(*args, **kwargs)
        except Exception as error:
            raise interpreter.InterpreterError(repr(error)) from error

    interpreter._patch_lang = patch_at_launch
    interpreted.__call__ = call


def look_types_up_once() -> None:
    """Keep numpy's counterpart of each of Triton's types, for the rest of the process."""
    from triton.runtime import interpreter

    look_up = getattr(interpreter, "_get_np_dtype", None)
    if look_up is None:
        return
    known: dict[str, Any] = {}

    def cached(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in known:
            known[name] = look_up(dtype)
        return known[name]

    interpreter._get_np_dtype = cached


def skip_overflow_checks() -> None:
    """Do not compute what only an assertion of a debug build would read."""
    from triton.runtime import interpreter

    builder = getattr(interpreter, "interpreter_builder", None)
    options = getattr(builder, "options", None)
    if getattr(options, "debug", True) is False and hasattr(options, "sanitize_overflow"):
        builder.options = replace(options, sanitize_overflow=False)


def reduce_in_halves() -> None:
    """Combine all neighbours at once, then all of what that gave: as often as the length has bits.

    A function that reduces is associative, as a GPU does not say in which order it combines.
    """
    from triton.runtime import interpreter

    operations = getattr(interpreter, "ReduceOps", None)
    if not all(hasattr(operations, name) for name in ("generic_reduce", "unravel", "to_tensor")):
        return

    def generic_reduce(self: Any, given: Any) -> list[Any]:
        arguments, axis = self.unravel(given, self.axis)
        dtypes = [one.dtype for one in arguments]
        parts = [np.moveaxis(one.handle.data, axis, 0) for one in arguments]
        np_dtypes = [part.dtype for part in parts]
        while parts[0].shape[0] > 1:
            pairs = [part[side::2] for side in (0, 1) for part in parts]
            found = self.combine_fn.fn(*map(self.to_tensor, pairs, dtypes * 2))
            found = found if isinstance(found, tuple) else (found,)
            parts = [
                one.handle.data.astype(np_dtype)
                for one, np_dtype in zip(found, np_dtypes, strict=True)
            ]
        made = []
        for part, dtype in zip(parts, dtypes, strict=True):
            result: Any = part[0]
            if self.keep_dims and self.axis is not None:
                result = np.expand_dims(result, axis)
            elif self.keep_dims:
                result = result.reshape((1,) * given[0].handle.data.ndim)
            made.append(self.to_tensor(result, dtype))
        return made

    operations.generic_reduce = generic_reduce


def share_shapes() -> None:
    """Make the numbers in a shape once."""
    from triton.language import core

    parameters = [
        list(inspect.signature(kind.__init__).parameters) for kind in (core.block_type, core.tensor)
    ]
    if parameters != [["self", "element_ty", "shape"], ["self", "handle", "type"]]:
        return
    make_block = core.block_type.__init__
    known: dict[tuple[Any, ...], tuple[Any, int]] = {}
    of_tensors: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def of_block(self: Any, element_ty: Any, shape: Any) -> None:
        key = tuple(shape)
        if not all(type(size) is int for size in key) or key not in known:
            make_block(self, element_ty, shape)
            known[tuple(self.shape)] = self.shape, self.numel
            return
        self.element_ty = element_ty
        self.shape, self.numel = known[key]
        self.name = f"<{key}, {element_ty}>"

    def of_tensor(self: Any, handle: Any, type: Any) -> None:  # noqa: A002 (Triton's name)
        self.handle, self.type, self.dtype = handle, type, type.scalar
        shape = tuple(type.shape) if type.is_block() else ()
        if shape not in of_tensors:
            sizes = core.tuple([core.constexpr(size) for size in shape])
            of_tensors[shape] = sizes, core.constexpr(int(np.prod(shape, dtype=np.int64)))
        self.shape, self.numel = of_tensors[shape]

    core.block_type.__init__ = of_block
    core.tensor.__init__ = of_tensor
