"""Codecs that encode a tensor as one stream of codes: quantize, optionally predict, encode.

``flat`` and ``delta`` pack fixed-length codes, the fastest way to a bounded error. ``huffman`` and ``ans`` are
entropy coders. ``lz4`` and ``zstd`` compress repetitions.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch

from tersor.codecs.pipeline import BoundedPipeline
from tersor.codecs.registry import register
from tersor.errors import SpecError
from tersor.kernels.batch import decode_streams, encode_streams
from tersor.kernels.batch.encoders.bitpack import BitpackEncoder
from tersor.kernels.batch.encoders.encoder import Encoder
from tersor.kernels.batch.encoders.entropy import AnsEncoder, HuffmanEncoder
from tersor.kernels.batch.encoders.lz import Lz4Encoder, ZstdEncoder
from tersor.kernels.batch.pipeline import Bounded, Pipeline, StreamPipeline
from tersor.kernels.runtime.op import Op


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamCodec(BoundedPipeline):
    """A codec that writes one stream of codes in the tensor's own order.

    ``lorenzo`` selects the prediction: 0 for none, 1 along the flattened tensor, and 2 or 3 over that many trailing
    axes, or over all axes of a tensor with fewer.
    """

    encode_op: ClassVar[Op] = encode_streams
    decode_op: ClassVar[Op] = decode_streams

    lorenzo: int = 0

    def __post_init__(self) -> None:
        """Reject invalid options."""
        # not super(): a dataclass with slots is a new class, which the zero-argument form does not find
        BoundedPipeline.__post_init__(self)
        if type(self.lorenzo) is not int or self.lorenzo not in (0, 1, 2, 3):
            raise SpecError(f"lorenzo must be 0, 1, 2 or 3, not {self.lorenzo}")
        self.encoder()

    @abstractmethod
    def encoder(self) -> Encoder:
        """Return the encoder of the codes."""

    def pipeline(self) -> StreamPipeline:
        """Return a pipeline that quantizes, predicts and encodes."""
        return Pipeline(None, Bounded(), self.lorenzo, self.encoder())

    def workspace_nbytes(self, num_values: int, dtype: torch.dtype) -> int:
        """See ``Codec.workspace_nbytes``."""
        form = self.encoder().form
        # the fused packing kernels handle every form of payload and store no codes: they measure tiles of 1024 values,
        # and quantize them again to write them
        if form == "bitpack":
            return 2 * num_values
        if form in ("ans", "ans-static"):
            # two passes of symbols of a sixteenth of the values' bytes each, and tables of tiles and blocks; to decode,
            # int32 residuals, which lie in the output where that is float32
            symbols = dtype.itemsize // 8 + 1
            residuals = 4 if self.lorenzo and dtype != torch.float32 else 0
            return max(symbols, residuals) * num_values
        return BoundedPipeline.workspace_nbytes(self, num_values, dtype)


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Flat(StreamCodec):
    """Quantize, then pack blocks of 32 or 64 codes, each at the width of its largest code.

    ``base`` stores each block relative to its smallest code, which suits smooth data far from zero.
    """

    codec_id: ClassVar[str] = "flat"

    block: int = 32
    base: bool = False

    def encoder(self) -> BitpackEncoder:
        """Return the fixed-length packer."""
        return BitpackEncoder(block=self.block, base=self.base)


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Delta(StreamCodec):
    """``flat`` after Lorenzo prediction, for smooth data."""

    codec_id: ClassVar[str] = "delta"

    lorenzo: int = 1
    block: int = 32

    def encoder(self) -> BitpackEncoder:
        """Return the fixed-length packer."""
        return BitpackEncoder(block=self.block)


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Huffman(StreamCodec):
    """Quantize and Huffman-code: high compression, and fast decoding on a CPU."""

    codec_id: ClassVar[str] = "huffman"

    def encoder(self) -> HuffmanEncoder:
        """Return the Huffman coder."""
        return HuffmanEncoder()


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Ans(StreamCodec):
    """Quantize and rANS-code to within 1 % of the entropy; designed for GPUs.

    ``frequencies`` is an optional static table, which encoder and decoder share and payloads do not store. It has one
    entry per code, centred on code 0, and a last one for the escape; see ``AnsEncoder``.
    """

    codec_id: ClassVar[str] = "ans"

    frequencies: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Convert the list that JSON yields to a tuple."""
        if isinstance(self.frequencies, list):
            object.__setattr__(self, "frequencies", tuple(self.frequencies))
        StreamCodec.__post_init__(self)

    def encoder(self) -> AnsEncoder:
        """Return the rANS coder."""
        return AnsEncoder(frequencies=self.frequencies)


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Lz4(StreamCodec):
    """Quantize and compress with lz4."""

    codec_id: ClassVar[str] = "lz4"

    acceleration: int = 1

    def encoder(self) -> Lz4Encoder:
        """Return the lz4 compressor."""
        return Lz4Encoder(acceleration=self.acceleration)


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Zstd(StreamCodec):
    """Quantize and compress with zstd."""

    codec_id: ClassVar[str] = "zstd"

    level: int = 1

    def encoder(self) -> ZstdEncoder:
        """Return the zstd compressor."""
        return ZstdEncoder(level=self.level)
