"""Text for codecs, bounds and shapes, uniform across verbs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def codec_words(config: Mapping[str, Any]) -> str:
    """Return the id and options of a codec, without its bound, from its config.

    Example:
        >>> from tersor import create
        >>> codec_words(create("fp8").to_config())
        'fp8 (format=e4m3, group=256)'
    """
    options = {k: v for k, v in config.items() if k not in ("id", "version", "bound")}
    named = ", ".join(f"{key}={value}" for key, value in options.items())
    return f"{config['id']} ({named})" if named else str(config["id"])


def bound_words(config: Mapping[str, Any], guarantee: str, error_bound: float | None) -> str:
    """Return the promise of a codec about the values: its error bound, or else its guarantee.

    Example:
        >>> bound_words({"bound": {"relative": 0.01}}, "", 0.25)
        '0.25 (relative 0.01)'
    """
    if error_bound is None:
        return guarantee
    bound = config.get("bound")
    relative = bound.get("relative") if isinstance(bound, Mapping) else None
    # the config of a codec that is not installed is unvalidated
    is_number = isinstance(relative, int | float)
    return f"{error_bound:.6g}" + (f" (relative {relative:g})" if is_number else "")


def shape_words(shape: tuple[int, ...]) -> str:
    """Format a shape as ``100 x 200``; ``scalar`` for no axes."""
    return " x ".join(map(str, shape)) or "scalar"


def counted(number: int, noun: str) -> str:
    """Format a number with its noun, in the plural unless it is 1.

    Example:
        >>> counted(1, "chunk"), counted(2, "chunk")
        ('1 chunk', '2 chunks')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
