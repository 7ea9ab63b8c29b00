"""``flat`` and ``delta``: fixed-length packing, the fastest way to a bounded error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from tersor.codecs.bounded import Coded, StreamCodec
from tersor.codecs.lists import FlatEngine, ListEngine
from tersor.codecs.registry import register
from tersor.kernels.batch import pack_slices, unpack_slices
from tersor.stages import payload as layout
from tersor.stages.encoders.bitpack import BitpackEncoder
from tersor.types import Bound


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

    @property
    def _is_plain(self) -> bool:
        return self.lorenzo == 0 and not self.base

    def list_engine(self) -> tuple[ListEngine, Bound] | None:
        """See ``Codec.list_engine``."""
        return (FlatEngine(self.block), self.bound) if self._is_plain else None

    def encode_bodies(self, xs: Sequence[torch.Tensor]) -> Sequence[Coded]:
        """See ``BoundedCodec.encode_bodies``."""
        if not self._is_plain:
            return StreamCodec.encode_bodies(self, xs)
        packed = pack_slices(xs, self.bound, self.block)
        return [layout.Body(*one) if isinstance(one, tuple) else one for one in packed]

    def decode_plain(
        self, payloads: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]
    ) -> Sequence[bool]:
        """See ``BoundedCodec.decode_plain``."""
        if not self._is_plain:
            return StreamCodec.decode_plain(self, payloads, outs)
        decoded: list[bool] = unpack_slices(payloads, outs, self.block)
        return decoded


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
