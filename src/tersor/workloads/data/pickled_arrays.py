"""Reads arrays from pickles without unpickling: no name in the file is ever imported or called.

Python's ``pickle`` calls whatever a file names. This reader supports only the opcodes (protocol 2) and
the few names that occur in pickles of numpy arrays, scipy CSR matrices and dictionaries of lists;
anything else is rejected.
"""

from __future__ import annotations

import pickletools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from tersor.errors import CorruptDataError, SpecError

_NAMES: Final = {
    "numpy.core.multiarray _reconstruct": "array",
    "numpy._core.multiarray _reconstruct": "array",
    "numpy ndarray": "ndarray",
    "numpy dtype": "dtype",
    "scipy.sparse.csr csr_matrix": "csr",
    "scipy.sparse._csr csr_matrix": "csr",
    "collections defaultdict": "dict",
    "__builtin__ list": "list",
    "builtins list": "list",
}
"""The names that a file may contain, and the kind of object each stands for."""
_DTYPES: Final = frozenset({"i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "b1"})
_VALUES: Final = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINSTRING", "BINSTRING"}
)
_CONSTANTS: Final = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: Final[dict[str, Callable[[], Any]]] = {
    "EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple,
}  # fmt: skip
_TUPLES: Final = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Mark:
    """Marks the start of the items of a list, tuple or dictionary on the stack."""


class _Name:
    """A permitted name, represented by its kind; it cannot be called."""

    def __init__(self, kind: str) -> None:
        self.kind = kind


class _Made:
    """An array, dtype or matrix whose contents follow later in the file."""

    def __init__(self, kind: str, value: Any = None) -> None:
        self.kind, self.value = kind, value


def read_pickled(path: Path) -> Any:
    """Return the array, CSR matrix or dictionary of lists in a file.

    A matrix is returned as a dictionary of its ``_shape``, ``indptr``, ``indices`` and ``data``.

    Raises:
        CorruptDataError: the file is damaged.
        SpecError: it cannot be read, or holds any other object.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror or error}") from error
    machine = _Machine(path)
    try:
        with warnings.catch_warnings():
            # raised for string escapes in opcodes that are rejected afterwards
            warnings.simplefilter("ignore", DeprecationWarning)
            for opcode, argument, _ in pickletools.genops(data):
                machine.do(opcode.name, argument)
        return machine.result()
    except SpecError:
        # it is a ValueError too
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise CorruptDataError(f"{path} is damaged, or no pickle; fetch it again") from error


class _Machine:
    """The pickle machine: the stack and the memo that opcodes operate on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def result(self) -> Any:
        """Return the object in the file."""
        (found,) = self._stack
        return _finished(found)

    def do(self, name: str, argument: Any) -> None:
        """Execute one opcode."""
        stack = self._stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            items = tuple(_finished(stack.pop()) for _ in range(_TUPLES[name]))
            stack.append(items[::-1])
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name == "MARK":
            stack.append(_Mark())
        elif name not in ("PROTO", "STOP"):
            self._do_rare(name, argument)

    def _do_rare(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name == "GLOBAL":
            if argument not in _NAMES:
                raise SpecError(
                    f"{self._path} names {argument.replace(' ', '.')}, which is part of no array; it is "
                    "not read"
                )
            stack.append(_Name(_NAMES[argument]))
        elif name == "TUPLE":
            stack.append(tuple(self._since_mark()))
        elif name in ("APPEND", "APPENDS"):
            items = [_finished(stack.pop())] if name == "APPEND" else self._since_mark()
            _of(stack[-1], list).extend(items)
        elif name == "SETITEMS":
            items = self._since_mark()
            _of(stack[-1], dict).update(zip(items[::2], items[1::2], strict=True))
        elif name in ("REDUCE", "NEWOBJ"):
            arguments, callee = stack.pop(), stack.pop()
            stack.append(_made(callee.kind, _of(arguments, tuple)))
        elif name == "BUILD":
            state = stack.pop()
            _build(stack[-1], state)
        else:
            raise SpecError(f"{self._path} has the pickle opcode {name}, which no array needs")

    def _since_mark(self) -> list[Any]:
        place = len(self._stack) - 1
        while not isinstance(self._stack[place], _Mark):
            place -= 1
        items = [_finished(item) for item in self._stack[place + 1 :]]
        del self._stack[place:]
        return items


def _of(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"a {kind.__name__} was expected")
    return value


def _finished(item: Any) -> Any:
    """Return the value of an object whose contents must be known by now."""
    if isinstance(item, _Made):
        if item.value is None:
            raise TypeError(f"{item.kind} without contents")
        return item.value
    return item


def _made(kind: str, arguments: tuple[Any, ...]) -> Any:
    """Construct an object of a permitted kind from its arguments."""
    if kind == "dict":
        return {}
    if kind == "dtype":
        if arguments[0] not in _DTYPES:
            raise TypeError(f"a dtype {arguments[0]}")
        return _Made(kind, np.dtype(arguments[0]))
    if kind in ("array", "csr"):
        return _Made(kind)
    raise TypeError(f"{kind} makes nothing")


def _build(made: Any, state: Any) -> None:
    """Set the contents of an array, dtype or matrix."""
    if made.kind == "csr":
        made.value = _of(state, dict)
    elif made.kind == "dtype":
        if state[1] not in ("<", "|"):
            raise TypeError(f"a dtype of byte order {state[1]}")
    else:
        _, shape, dtype, is_fortran, data = _of(state, tuple)
        # Python 2 wrote bytes as strings, which pickletools decodes as latin-1
        values = np.frombuffer(_of(data, str).encode("latin-1"), dtype)
        made.value = values.reshape(shape, order="F" if is_fortran else "C")
