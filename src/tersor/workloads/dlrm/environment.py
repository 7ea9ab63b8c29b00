"""Bounds from the environment variables that the published scripts of the method read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tersor.errors import SpecError
from tersor.policy.decay import SHAPES
from tersor.sites.embeddings import AdaptiveBounds

VARIABLES = {
    "TIGHTEN_EB_TABLES": "numbers of the tables with the tight bound",
    "LOOSEN_EB_TABLES": "numbers of those with the loose one",
    "TIGHTEN_EB_VALUE": "the tight bound",
    "LOOSEN_EB_VALUE": "the loose bound",
    "BASE_ERROR_BOUND": "the bound of all others",
    "EB_CONSTANT": "how many times looser bounds are at the start",
    "EARLY_STAGE": "iterations until they are final",
    "DECAY_FUNC": "step, linear, log or constant",
}

_BOUNDS = {"TIGHTEN_EB_VALUE": "tight", "BASE_ERROR_BOUND": "base", "LOOSEN_EB_VALUE": "loose"}
_TABLES = {"TIGHTEN_EB_TABLES": "tight", "LOOSEN_EB_TABLES": "loose"}


def _tables(name: str, text: str) -> frozenset[int]:
    if not re.fullmatch(r"[\[\]\s,;\d-]*", text):
        raise SpecError(f"{name} is a list of table numbers, as in '2 3 9', not {text!r}")
    return frozenset(int(number) for number in re.findall(r"\d+", text))


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise SpecError(f"{name} must be a number, not {text!r}") from error


def bounds_from(environment: Mapping[str, str], given: AdaptiveBounds) -> AdaptiveBounds:
    """Return ``given`` with what the variables say.

    Raises:
        SpecError: a variable makes no sense; the sentence names it.
    """
    found = {name: environment[name] for name in VARIABLES if environment.get(name, "").strip()}
    bounds = {
        name: _number(variable, found[variable])
        for variable, name in _BOUNDS.items()
        if variable in found
    }
    tables: dict[str, Any] = {
        name: _tables(variable, found[variable])
        for variable, name in _TABLES.items()
        if variable in found
    }
    decay: dict[str, Any] = {}
    if "EB_CONSTANT" in found:
        decay["magnitude"] = _number("EB_CONSTANT", found["EB_CONSTANT"])
    if "EARLY_STAGE" in found:
        decay["end"] = int(_number("EARLY_STAGE", found["EARLY_STAGE"]))
    if "DECAY_FUNC" in found:
        decay["shape"] = found["DECAY_FUNC"].strip().lower()
        if decay["shape"] not in SHAPES:
            raise SpecError(f"DECAY_FUNC must be one of {', '.join(SHAPES)}")
    return replace(
        given,
        bounds=replace(given.bounds, **bounds),
        decay=replace(given.decay, **decay),
        **tables,
    )
