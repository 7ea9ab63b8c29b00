"""``flat`` and ``delta``: fixed-length packing, the fastest way to a bounded error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tersor.codecs.registry import register
from tersor.codecs.stream import StreamCodec
from tersor.kernels.batch.encoders.bitpack import BitpackEncoder


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Flat(StreamCodec):
    """Quantize and pack blocks of 32 or 64 codes at the width their largest code needs.

    ``base`` stores each block relative to its smallest code: for smooth data far from zero.
    """

    codec_id: ClassVar[str] = "flat"

    block: int = 32
    base: bool = False

    def encoder(self) -> BitpackEncoder:
        """Fixed-length packing."""
        return BitpackEncoder(block=self.block, base=self.base)


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Delta(StreamCodec):
    """``flat`` after Lorenzo prediction: for smooth data."""

    codec_id: ClassVar[str] = "delta"

    lorenzo: int = 1
    block: int = 32

    def encoder(self) -> BitpackEncoder:
        """Fixed-length packing."""
        return BitpackEncoder(block=self.block)
