"""The shape of the model to plan for, from its name or its number of weights."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Final

from tersor.bench.core.rows import ShardRow
from tersor.errors import SpecError
from tersor.workloads.models.gpt import PRESETS, GptShape

_UNITS: Final = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_LEAST, _MOST = 1e5, 1e13


def parse_shape(text: str) -> GptShape:
    """Return the shape of a preset, or one with about a given number of weights.

    The latter has the depth, vocabulary and context of the preset that is nearest in size, and the width
    that gives the number of weights.

    Raises:
        SpecError: the text is neither a preset nor a supported number of weights.

    Example:
        >>> parse_shape("1.3B").layers, parse_shape("3B").layers
        (24, 32)
    """
    if text in PRESETS:
        return PRESETS[text].shape
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmbt]?)", text.lower())
    count = float(found[1]) * _UNITS[found[2]] if found is not None else 0.0
    if not _LEAST <= count <= _MOST:
        raise SpecError(
            f"parameters is one of {', '.join(PRESETS)}, or a number of weights such as 3B, not {text!r}"
        )
    return _nearest(count)


def measured_shape(row: ShardRow) -> GptShape:
    """Return the shape of a row's model.

    A preset has a vocabulary of 256, because its tokens are bytes. Any other model is assumed to have the
    depth, context and vocabulary of the preset nearest in size.
    """
    return _preset_of(row) or _nearest(row.num_values)


def guess_of_shape(row: ShardRow) -> str | None:
    """Return a sentence on what ``measured_shape`` assumed, or None if the shape is a preset's."""
    if _preset_of(row) is not None:
        return None
    num_blocks = measured_shape(row).layers
    return (
        f"{row.input} is no preset; it is taken for one of {num_blocks} blocks, like the preset nearest in "
        "size"
    )


def _preset_of(row: ShardRow) -> GptShape | None:
    name = row.input.removeprefix("gpt-")
    if name not in PRESETS:
        return None
    shape = replace(PRESETS[name].shape, vocabulary=256)
    return shape if shape.num_parameters == row.num_values else None


def root_weights(shape: GptShape) -> int:
    """Return the number of weights outside the blocks: embeddings and the last norm."""
    # the part of the weights that does not double with the number of blocks
    return 2 * shape.num_parameters - replace(shape, layers=2 * shape.layers).num_parameters


def _nearest(count: float) -> GptShape:
    def distance(shape: GptShape) -> float:
        return abs(math.log(shape.num_parameters / count))

    near = min((one.shape for one in PRESETS.values()), key=distance)
    # the number of weights is quadratic in the width
    linear = 13 * near.layers + near.vocabulary + near.context + 2
    width = (math.sqrt(linear**2 + 48 * near.layers * count) - linear) / (24 * near.layers)
    return replace(near, width=max(1, round(width)), heads=1)
