"""``lz4`` and ``zstd``: dictionary coding of the codes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tersor.codecs.registry import register
from tersor.codecs.stream import StreamCodec
from tersor.kernels.batch.encoders.lz import Lz4Encoder, ZstdEncoder


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Lz4(StreamCodec):
    """Quantize and compress with lz4."""

    codec_id: ClassVar[str] = "lz4"

    acceleration: int = 1

    def encoder(self) -> Lz4Encoder:
        """Lz4 frames."""
        return Lz4Encoder(acceleration=self.acceleration)


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Zstd(StreamCodec):
    """Quantize and compress with zstd."""

    codec_id: ClassVar[str] = "zstd"

    level: int = 1

    def encoder(self) -> ZstdEncoder:
        """Zstd frames."""
        return ZstdEncoder(level=self.level)
