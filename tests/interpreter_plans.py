"""Operators of Triton's interpreter by plans, one for each combination of types.

For every sum of two blocks the interpreter works out again which types to convert them to, broadcasts both to the
shape of the result, and checks sizes: 30 us, of which numpy adds for 1. The result depends only on the types
and on Python numbers, so each combination is worked out once. A plan is used only if its first result equals the
interpreter's own, bit for bit; types that numpy lacks, such as bfloat16, have no plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

OPERATORS: dict[str, np.ufunc] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "lshift": np.left_shift, "rshift": np.right_shift,
}  # fmt: skip
COMPARISONS: dict[str, np.ufunc] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operand:
    """How one operand is converted before numpy sees it.

    Attributes:
        constant: its values, if it is a number of Python's.
        dtype: the type to which it is converted; None for none.
    """

    constant: Any = None
    dtype: Any = None

    def values(self, given: Any) -> Any:
        """Return the values that numpy takes."""
        if self.constant is not None:
            return self.constant
        data = given.handle.data
        return data if self.dtype is None else data.astype(self.dtype)


@dataclass(frozen=True, slots=True)
class Plan:
    """How numpy computes what an operator gives for operands of certain types.

    Attributes:
        operands: what becomes of each.
        operate: what computes the result.
        example: a result, whose types others have too.
    """

    operands: tuple[Operand, ...]
    operate: Callable[..., Any]
    example: Any

    def run(self, given: Sequence[Any]) -> Any:
        """Return the values of the result."""
        return self.operate(*[one.values(x) for one, x in zip(self.operands, given, strict=True)])

    def is_exact(self, given: Sequence[Any]) -> bool:
        """True if these operands give the example."""
        found, expected = self.run(given), self.example.handle.data
        same = found.dtype == expected.dtype and found.shape == expected.shape
        return same and found.tobytes() == expected.tobytes()


def planned(
    interpreted: Callable[..., Any], plan_of: Callable[..., Plan | None]
) -> Callable[..., Any]:
    """Return an operator that follows a plan where there is one.

    ``plan_of`` takes the operands and what the interpreter gives for them.
    """
    plans: dict[Any, Plan | None] = {}

    def operator(*given: Any) -> Any:
        key = tuple([key_of(x) for x in given])
        if key not in plans:
            made = interpreted(*given)
            plan = None if None in key else plan_of(given, made)
            plans[key] = plan if plan is not None and plan.is_exact(given) else None
            return made
        plan = plans[key]
        if plan is None:
            return interpreted(*given)
        data = plan.run(given)
        if data.shape != plan.example.handle.data.shape:
            return interpreted(*given)
        return like(plan.example, data)

    return operator


def key_of(x: Any) -> Any:
    """Return what a plan depends on; None if nothing is known of this operand."""
    if hasattr(x, "handle"):
        return x.type.name
    kind = type(x)
    # NaN is no key, and a zero equals the other one
    return x.hex() if kind is float else (kind, x) if kind is int or kind is bool else None


def like(example: Any, data: Any) -> Any:
    """Return a block of these values, with the types of another."""
    handle = object.__new__(type(example.handle))
    handle.data, handle.dtype, handle.attr = data, example.handle.dtype, {}
    made = object.__new__(type(example))
    made.handle, made.type, made.dtype = handle, example.type, example.dtype
    made.shape, made.numel = example.shape, example.numel
    return made


def is_plain(x: Any) -> bool:
    """True for a number, and for a block of a type that numpy has."""
    return not hasattr(x, "handle") or x.dtype.is_int() or x.dtype.name in ("fp16", "fp32", "fp64")


def operand_of(before: Any, after: Any) -> Operand | None:
    """Return what became of an operand; None if numpy converts it in another way."""
    if not hasattr(before, "handle"):
        return Operand(constant=after.handle.data.reshape(-1)[:1].copy())
    if before.dtype == after.dtype:
        return Operand()
    # whatever is not zero becomes True, and a rounding may be asked for
    is_widened = before.dtype.is_int() or (before.dtype.name, after.dtype.name) == ("fp32", "fp64")
    return (
        Operand(dtype=after.handle.data.dtype) if is_widened and not after.dtype.is_int1() else None
    )


def plan_arithmetic(semantic: Any, operate: Any, given: Sequence[Any], made: Any) -> Plan | None:
    """Plan an operator of two operands."""
    if operate is np.add and getattr(given[0], "dtype", None) and given[0].dtype.is_ptr():
        return plan_place(given, made)
    if not all(map(is_plain, given)):
        return None
    compared = operate in COMPARISONS.values()
    used = semantic.binary_op_type_checking_impl(
        *(map(semantic.to_tensor, given) if compared else given)
    )
    operands = tuple(map(operand_of, given, used))
    if used[0].dtype != used[1].dtype or None in operands:
        return None
    # a shift to the right keeps the sign or not, which it takes from the type before a conversion
    if operate is np.right_shift and operands[0] != Operand():
        return None
    return Plan(operands, operate, made)


def plan_place(given: Sequence[Any], made: Any) -> Plan | None:
    """Plan the sum of pointers and of how many values they move by."""
    pointers, offsets = given
    nbytes = max(1, pointers.dtype.element_ty.primitive_bitwidth // 8)
    # a negative number wraps, as a pointer does
    operand = Operand(dtype=np.uint64)
    if not hasattr(offsets, "handle"):
        operand = Operand(constant=np.array([offsets], np.int64).astype(np.uint64))
    elif not offsets.dtype.is_int():
        return None
    return Plan((Operand(), operand), partial(moved, nbytes), made)


def moved(nbytes: int, pointers: Any, offsets: Any) -> Any:
    """Return pointers to other values."""
    return pointers + nbytes * offsets


def plan_choice(semantic: Any, given: Sequence[Any], made: Any) -> Plan | None:
    """Plan ``where``."""
    condition, *values = given
    if condition.dtype.name != "int1" or not all(map(is_plain, values)):
        return None
    used = semantic.binary_op_type_checking_impl(*values)
    operands = (Operand(), *map(operand_of, values, used))
    return None if None in operands else Plan(operands, np.where, made)


def plan_conversion(given: Sequence[Any], made: Any) -> Plan | None:
    """Plan a conversion to the type of what was made."""
    if not is_plain(given[0]) or not is_plain(made) or made.dtype.is_int1():
        return None
    return Plan((Operand(dtype=made.handle.data.dtype),), np.asarray, made)


def plan_operators() -> None:
    """Let operators of interpreted blocks follow plans, for the rest of the process."""
    from triton.language import core
    from triton.runtime import interpreter

    semantic = getattr(interpreter, "interpreter_semantic", None)
    options = getattr(getattr(interpreter, "interpreter_builder", None), "options", None)
    patch_tensor = getattr(interpreter, "_patch_lang_tensor", None)
    # numpy does not check for overflows
    if semantic is None or patch_tensor is None or getattr(options, "sanitize_overflow", True):
        return
    methods = {
        name: method_of(core, semantic, name, operate, is_reversed)
        for table in (OPERATORS, COMPARISONS)
        for short, operate in table.items()
        for name, is_reversed in ((f"__{short}__", False), (f"__r{short}__", True))
        if table is OPERATORS or not is_reversed
    }
    methods["to"] = conversion(core, semantic)

    def patch(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        for name, method in methods.items():
            scope.set_attr(tensor, name, method)

    interpreter._patch_lang_tensor = patch
    semantic.where = planned(semantic.where, partial(plan_choice, semantic))


def method_of(
    core: Any, semantic: Any, name: str, operate: np.ufunc, is_reversed: bool
) -> Callable[..., Any]:
    """Return the method of a block for an operator."""
    interpreted = partial(getattr(core.tensor, name), _semantic=semantic)
    if is_reversed:
        # a plan has the operands in the order of the operation
        operator = planned(
            lambda one, other: interpreted(other, one), partial(plan_arithmetic, semantic, operate)
        )
        return lambda self, other: operator(bare(core, other), self)
    operator = planned(interpreted, partial(plan_arithmetic, semantic, operate))
    return lambda self, other: operator(self, bare(core, other))


def bare(core: Any, x: Any) -> Any:
    """Return what a constant holds."""
    return x.value if type(x) is core.constexpr else x


def conversion(core: Any, semantic: Any) -> Callable[..., Any]:
    """Return the method ``to`` of a block."""
    interpreted = partial(core.tensor.to, _semantic=semantic)
    to_type: dict[str, Callable[..., Any]] = {}

    def to(self: Any, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        dtype = bare(core, dtype)
        if args or kwargs or type(dtype) is not core.dtype:
            return interpreted(self, dtype, *args, **kwargs)
        if dtype.name == self.dtype.name:
            return self
        if dtype.name not in to_type:
            to_type[dtype.name] = planned(lambda x: interpreted(x, dtype), plan_conversion)
        return to_type[dtype.name](self)

    return to


def spread_known_shapes() -> None:
    """Leave operands of one shape as they are, and unwrap nothing from what wraps nothing."""
    from triton.language import core
    from triton.runtime import interpreter

    semantics = type(getattr(interpreter, "interpreter_semantic", None))
    spread = getattr(semantics, "broadcast_impl_value", None)
    unwrap = getattr(core, "_unwrap_if_constexpr", None)
    if spread is None or unwrap is None:
        return
    wrap_nothing = {core.tensor, core.dtype, core.block_type, int, bool, float, str, type(None)}

    def broadcast(self: Any, lhs: Any, rhs: Any) -> Any:
        return (lhs, rhs) if lhs.shape is rhs.shape else spread(self, lhs, rhs)

    def unwrapped(given: Any) -> Any:
        return given if type(given) in wrap_nothing else unwrap(given)

    semantics.broadcast_impl_value = broadcast
    core._unwrap_if_constexpr = unwrapped
