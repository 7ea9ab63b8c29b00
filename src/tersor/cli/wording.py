"""Codecs, bounds and shapes in words, the same in every verb."""

from __future__ import annotations

from typing import Any

from tersor.codecs import Codec
from tersor.types import Bound


def options_of(codec: Codec) -> dict[str, Any]:
    """Return the codec's options, without its bound."""
    return {k: v for k, v in codec.to_config().items() if k not in ("id", "version", "bound")}


def codec_words(codec: Codec) -> str:
    """Return the codec's id and options.

    Example:
        >>> from tersor import create
        >>> codec_words(create("fp8"))
        'fp8 (format=e4m3, group=256)'
    """
    named = ", ".join(f"{key}={value}" for key, value in options_of(codec).items())
    return f"{codec.codec_id} ({named})" if named else codec.codec_id


def bound_words(codec: Codec, error_bound: float | None) -> str:
    """Return what is promised about the values.

    Example:
        >>> from tersor import create
        >>> bound_words(create("flat", bound=Bound.relative(0.01)), 0.25)
        '0.25 (relative 0.01)'
    """
    if error_bound is None:
        return codec.guarantee
    bound = getattr(codec, "bound", None)
    if isinstance(bound, Bound) and bound.kind == "relative":
        return f"{error_bound:.6g} (relative {bound.value:g})"
    return f"{error_bound:.6g}"


def shape_words(shape: tuple[int, ...]) -> str:
    """Return a shape as ``100 x 200``; ``scalar`` for no axes."""
    return " x ".join(map(str, shape)) or "scalar"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    Example:
        >>> counted(1, "chunk"), counted(2, "chunk")
        ('1 chunk', '2 chunks')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
