"""Descriptions of codecs as data: compositions run their parts one by one, and backends fuse what they can."""

from __future__ import annotations

from typing import Generic, Literal, NamedTuple, TypeVar

import torch

from tersor.kernels.batch.encoders.encoder import Encoder
from tersor.kernels.rows.compose import Coder

QuantizerT = TypeVar(
    "QuantizerT",
    bound="Bounded | GroupLevels | RmsLevels | MaskLevels | RangeLevels | Words | FloatFormat | ScaledFormat",
)
EncoderT = TypeVar("EncoderT")


class Bounded(NamedTuple):
    """Quantizes to a grid that satisfies the error bound of each tensor; see ``kernels.quantize``."""


class GroupLevels(NamedTuple):
    """Quantizes to levels between plus and minus the largest magnitude of each group.

    Attributes:
        nbits: bits per value, 8 or 4.
        group: values per scale.
    """

    nbits: int
    group: int


class RmsLevels(NamedTuple):
    """Quantizes to steps of the root mean square of each group; see ``kernels.group.rms``.

    Attributes:
        step: quantization step in root mean squares.
        zeros: whether zeros and signs are exact; None decides from the values of each tensor.
    """

    step: float
    zeros: bool | None


class MaskLevels(NamedTuple):
    """Quantizes to levels up to the largest magnitude of each group, with exact zeros and signs.

    Attributes:
        nbits: bits per value, 2 or 4.
    """

    nbits: int


class RangeLevels(NamedTuple):
    """Quantizes to four levels between the smallest and the largest value of each group.

    Attributes:
        group: values per range.
    """

    group: int


class Words(NamedTuple):
    """Takes the bits of each value as an integer; see ``kernels.batch.exact``."""


class FloatFormat(NamedTuple):
    """Rounds to a narrower float.

    Attributes:
        dtype: dtype of the stored values; None for the tensor's own.
    """

    dtype: torch.dtype | None


class ScaledFormat(NamedTuple):
    """Scales each group to the range of an 8-bit float and rounds to it.

    Attributes:
        dtype: dtype of the stored values.
        group: values per scale.
    """

    dtype: torch.dtype
    group: int


class Pipeline(NamedTuple, Generic[QuantizerT, EncoderT]):
    """The parts of a codec, in the order in which a tensor passes through them.

    Attributes:
        transform: ``hadamard`` transforms every 32 values, ``distinct-rows`` drops repeated rows.
        quantizer: converts values to codes.
        predictor: number of trailing axes along which the Lorenzo predictor runs; 0 for none.
        encoder: converts codes to bytes; None if they are stored without coding.
    """

    transform: Literal["hadamard", "distinct-rows"] | None
    quantizer: QuantizerT
    predictor: int
    encoder: EncoderT


StreamPipeline = Pipeline[Bounded, Encoder]
"""One stream of codes in the tensor's own order."""
RowPipeline = Pipeline[Bounded, Coder]
"""The codes of the distinct rows, and an index that maps every row to its distinct row."""
GroupPipeline = Pipeline[GroupLevels, None]
RmsPipeline = Pipeline[RmsLevels, Literal["ans"]]
MaskPipeline = Pipeline[MaskLevels, None]
RangePipeline = Pipeline[RangeLevels, None]
ExactPipeline = Pipeline[Words, None]
CastPipeline = Pipeline[FloatFormat, None]
ScaledCastPipeline = Pipeline[ScaledFormat, None]
