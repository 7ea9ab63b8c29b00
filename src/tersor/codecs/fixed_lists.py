"""Lists of tensors whose payloads have a fixed size: one launch encodes them, one decodes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tersor.codecs.lists import EncodedList, FixedEngine
from tersor.kernels.group import layout as group_layout
from tersor.kernels.group.cast import layout as cast_layout
from tersor.kernels.runtime.op import Op
from tersor.types import Bound

_CASTS = "tersor.kernels.batch.gpu.cast"
_GROUPS = "tersor.kernels.batch.gpu.group"
_encode_casts = Op("encode_casts", {"gpu": f"{_CASTS}:encode_casts"})
_decode_casts = Op("decode_casts", {"gpu": f"{_CASTS}:decode_casts"})
_encode_scaled_casts = Op("encode_scaled_casts", {"gpu": f"{_CASTS}:encode_scaled_casts"})
_decode_scaled_casts = Op("decode_scaled_casts", {"gpu": f"{_CASTS}:decode_scaled_casts"})
_encode_groups = Op("encode_groups", {"gpu": f"{_GROUPS}:encode_groups"})
_decode_groups = Op("decode_groups", {"gpu": f"{_GROUPS}:decode_groups"})


@dataclass(frozen=True, slots=True)
class CastEngine(FixedEngine):
    """What ``half`` and ``bf16`` do."""

    target: torch.dtype

    def nbytes(self, numel: int) -> int:
        """Two bytes per value."""
        return 2 * numel

    def encode(self, xs: Sequence[torch.Tensor], bounds: Sequence[Bound]) -> EncodedList:
        """See ``ListEngine.encode``."""
        del bounds
        return EncodedList(*_encode_casts(xs, self.target))

    def decode(
        self,
        buffer: torch.Tensor,
        offsets: torch.Tensor,
        sizes: torch.Tensor,
        outs: Sequence[torch.Tensor],
        status: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See ``ListEngine.decode``."""
        found: torch.Tensor = _decode_casts(buffer, offsets, sizes, outs, self.target, status)
        return found


@dataclass(frozen=True, slots=True)
class ScaledCastEngine(FixedEngine):
    """What ``fp8`` does with groups that ``can_take`` holds for."""

    target: torch.dtype
    group: int

    @staticmethod
    def can_take(group: int) -> bool:
        """Say whether a program holds whole groups of that size."""
        return group <= cast_layout.TILE

    def nbytes(self, numel: int) -> int:
        """One byte per value and four per group."""
        return cast_layout.payload_nbytes(numel, self.group)

    def encode(self, xs: Sequence[torch.Tensor], bounds: Sequence[Bound]) -> EncodedList:
        """See ``ListEngine.encode``."""
        del bounds
        return EncodedList(*_encode_scaled_casts(xs, self.target, self.group))

    def decode(
        self,
        buffer: torch.Tensor,
        offsets: torch.Tensor,
        sizes: torch.Tensor,
        outs: Sequence[torch.Tensor],
        status: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See ``ListEngine.decode``."""
        found: torch.Tensor = _decode_scaled_casts(
            buffer, offsets, sizes, outs, self.target, self.group, status
        )
        return found


@dataclass(frozen=True, slots=True)
class GroupEngine(FixedEngine):
    """What ``group8`` and ``group4`` do with groups that ``can_take`` holds for.

    Tensors of different seeds are different calls; without seeds there is one.
    """

    nbits: int
    group: int
    seed: int | None
    hadamard: bool

    @staticmethod
    def can_take(group: int) -> bool:
        """Say whether a program holds whole groups of that size."""
        return group_layout.is_held_whole(group)

    def nbytes(self, numel: int) -> int:
        """Four bytes per group and ``nbits`` bits per value of whole groups."""
        return group_layout.payload_nbytes(numel, self.nbits, self.group)

    def encode(self, xs: Sequence[torch.Tensor], bounds: Sequence[Bound]) -> EncodedList:
        """See ``ListEngine.encode``."""
        del bounds
        options = (self.nbits, self.group, self.seed, self.hadamard)
        return EncodedList(*_encode_groups(xs, *options))

    def decode(
        self,
        buffer: torch.Tensor,
        offsets: torch.Tensor,
        sizes: torch.Tensor,
        outs: Sequence[torch.Tensor],
        status: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See ``ListEngine.decode``."""
        options = (self.nbits, self.group, self.hadamard)
        found: torch.Tensor = _decode_groups(buffer, offsets, sizes, outs, *options, status)
        return found
