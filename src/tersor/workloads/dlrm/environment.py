"""Bounds from the environment variables of the published scripts of the method."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from tersor.errors import SpecError
from tersor.policy.decay import SHAPES
from tersor.sites.embeddings import AdaptiveBounds


def _tables(name: str, text: str) -> frozenset[int]:
    if not re.fullmatch(r"[\[\]\s,;\d-]*", text):
        raise SpecError(f"{name} is a list of table numbers, as in '2 3 9', not {text!r}")
    return frozenset(int(number) for number in re.findall(r"\d+", text))


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise SpecError(f"{name} must be a number, not {text!r}") from error


def _whole(name: str, text: str) -> int:
    return int(_number(name, text))


def _shape(name: str, text: str) -> str:
    if text.lower() not in SHAPES:
        raise SpecError(f"{name} must be one of {', '.join(SHAPES)}")
    return text.lower()


_VARIABLES: Final[Mapping[str, tuple[str, str, Callable[[str, str], Any]]]] = {
    "TIGHTEN_EB_TABLES": ("own", "tight", _tables),
    "LOOSEN_EB_TABLES": ("own", "loose", _tables),
    "TIGHTEN_EB_VALUE": ("bounds", "tight", _number),
    "LOOSEN_EB_VALUE": ("bounds", "loose", _number),
    "BASE_ERROR_BOUND": ("bounds", "base", _number),
    "EB_CONSTANT": ("decay", "magnitude", _number),
    "EARLY_STAGE": ("decay", "end", _whole),
    "DECAY_FUNC": ("decay", "shape", _shape),
}
"""Per variable, the part and field of ``AdaptiveBounds`` that it sets, and its parser."""


def bounds_from(environment: Mapping[str, str], given: AdaptiveBounds) -> AdaptiveBounds:
    """Return ``given``, overridden by the variables that are set.

    Raises:
        SpecError: a variable is invalid; the message names it.
    """
    said: dict[str, dict[str, Any]] = {"own": {}, "bounds": {}, "decay": {}}
    for name, (part, field, read) in _VARIABLES.items():
        if text := environment.get(name, "").strip():
            said[part][field] = read(name, text)
    return replace(
        given,
        bounds=replace(given.bounds, **said["bounds"]),
        decay=replace(given.decay, **said["decay"]),
        **said["own"],
    )
