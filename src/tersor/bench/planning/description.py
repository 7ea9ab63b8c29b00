"""Helpers that parse a user's description of the training step to plan for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tersor.errors import SpecError
from tersor.planning.cluster import DEFAULTS

SHARED_KEYS: Final = (*DEFAULTS, "overlap", "efficiency", "compute_ms")
"""Keys that apply to every site."""


def refuse_unknown(values: Mapping[str, Any], keys: Sequence[str]) -> None:
    """Raise ``SpecError`` for the first key that is not among ``keys``."""
    unknown = next((key for key in values if key not in keys), None)
    if unknown is not None:
        raise SpecError(f"a cluster has no {unknown!r}; it may have {', '.join(keys)}")


def read_number(
    values: Mapping[str, Any], key: str, least: float, most: float = math.inf
) -> float | None:
    """Return a number from ``least`` to ``most``, or None if the key is missing.

    Raises:
        SpecError: the value is anything else.
    """
    value = values.get(key)
    if value is None:
        return None
    if type(value) not in (int, float) or not least <= value <= most or not math.isfinite(value):
        limit = f"from {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        raise SpecError(f"{key} must be a number {limit}, not {value!r}")
    return float(value)


def read_milliseconds(values: Mapping[str, Any], key: str) -> float | None:
    """Convert a number of milliseconds to seconds; see ``read_number``."""
    found = read_number(values, key, 0)
    return None if found is None else found / 1e3


def read_efficiency(values: Mapping[str, Any]) -> float | None:
    """Return the share of a link's bandwidth that is reached, above 0; see ``read_number``."""
    found = read_number(values, "efficiency", 0, 1)
    if found == 0:
        raise SpecError("the efficiency of links must be above 0")
    return found
