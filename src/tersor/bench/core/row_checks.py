"""Validation of the values in a result file, so that using them later cannot fail."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from tersor.errors import CorruptDataError, SpecError

_MOST: Final = 2**63
Count = Annotated[int, Meta(ge=0, le=_MOST - 1)]
FromOne = Annotated[int, Meta(ge=1, le=_MOST - 1)]
_FOUND: Final = re.compile(r"(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?", re.DOTALL)
_WORDS: Final = {
    "`int`": "a whole number", "`float`": "a number", "`str`": "a text", "`bool`": "true or false",
    "`object`": "an object", "`null`": "null", "`array`": "a list",
}  # fmt: skip


def text_of(path: str | os.PathLike[str]) -> str:
    """Return the text of a result file.

    Raises:
        CorruptDataError: the file is not text.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"{path} is not text; name a .jsonl file of results") from error


def checked(values: Any, kind: Any) -> Any:
    """Convert values to a struct of type ``kind``.

    Raises:
        SpecError: a field is unknown, missing or of another type; the message names it.

    Example:
        >>> checked({"seconds": -1}, msgspec.defstruct("Run", [("seconds", Count)]))
        Traceback (most recent call last):
        ...
        tersor.errors.SpecError: seconds must be a whole number >= 0
    """
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise SpecError(_sentence(str(error))) from error


def _sentence(message: str) -> str:
    """Rephrase a message of msgspec in the style of the other checks."""
    found = _FOUND.fullmatch(message)
    what, path = (message, None) if found is None else found.group("what", "path")
    name = (path or "").removeprefix("$").removeprefix(".") or "it"
    what = what.replace(" | null`", "` or null")
    for word, shown in _WORDS.items():
        what = what.replace(word, shown)
    if what.startswith("Expected "):
        return f"{name} must be {what.removeprefix('Expected ').replace(', got ', ', not ')}"
    if what.startswith("Object "):
        return f"{name} {what.removeprefix('Object ').replace('missing', 'lacks the')}"
    if what.startswith(("Invalid value ", "Invalid enum value ", "Number out of range")):
        return f"{name} must be one that is known: {what[0].lower()}{what[1:]}"
    return what


def is_count(value: Any, least: int = 0) -> bool:
    """Return whether a value is a signed 64-bit integer of at least ``least``."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < _MOST


def is_number(value: Any) -> bool:
    """Return whether a value is a float, possibly not finite, or an integer below 2**63 in magnitude."""
    is_any = isinstance(value, int | float) and not isinstance(value, bool)
    return is_any and not (isinstance(value, int) and abs(value) >= _MOST)


def require(name: str, is_fine: bool, wanted: str) -> None:
    """Raise ``SpecError`` that names a value and its requirement, unless ``is_fine``."""
    if not is_fine:
        raise SpecError(f"{name} must be {wanted}")
