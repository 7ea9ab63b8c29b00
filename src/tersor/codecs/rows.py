"""``rows``: each distinct row once, entropy-coded. The codec for looked-up embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from tersor.codecs.bounded import BoundedCodec, Coded, check_all_read
from tersor.codecs.lists import EncodedList, ListEngine
from tersor.codecs.registry import register
from tersor.errors import SpecError
from tersor.kernels.batch import decode_row_slices, encode_row_slices
from tersor.kernels.rows import decode_rows
from tersor.kernels.runtime.op import Op
from tersor.stages import payload as layout
from tersor.types import Bound

_encode_rows_list = Op(
    "encode_rows_list", {"gpu": "tersor.kernels.batch.gpu.rows:encode_rows_list"}
)
_decode_rows_list = Op(
    "decode_rows_list", {"gpu": "tersor.kernels.batch.gpu.rows_decode:decode_rows_list"}
)


def row_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (rows, values per row): rows run along the last axis; a vector is one row."""
    width = shape[-1] if shape else 1
    return (torch.Size(shape).numel() // width if width else 0), width


def _as_rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.dim() == 2 else x.view(row_shape(tuple(x.shape)))


@dataclass(frozen=True, slots=True)
class RowsEngine(ListEngine):
    """What ``rows`` does with rANS; outliers and more than 256 different codes are beyond it."""

    def encode(self, xs: Sequence[torch.Tensor], bounds: Sequence[Bound]) -> EncodedList:
        """See ``ListEngine.encode``."""
        return EncodedList(*_encode_rows_list([_as_rows(x) for x in xs], bounds))

    def decode(
        self,
        buffer: torch.Tensor,
        offsets: torch.Tensor,
        sizes: torch.Tensor,
        outs: Sequence[torch.Tensor],
        status: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See ``ListEngine.decode``."""
        del status
        matrices = [_as_rows(out) for out in outs]
        found: torch.Tensor = _decode_rows_list(buffer, offsets, sizes, matrices)
        return found


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Rows(BoundedCodec):
    """Quantize the distinct rows, merge those with equal codes, entropy-code what is left.

    Rows run along the last axis. ``entropy`` is ``huffman`` (smaller for small tensors, fast on a
    CPU) or ``ans`` (fast on a GPU, and there the default of a codec made by its name).
    """

    codec_id: ClassVar[str] = "rows"

    entropy: Literal["huffman", "ans"] = "huffman"

    @classmethod
    def options_on(cls, device: torch.device) -> dict[str, Any]:
        """Take rANS on CUDA, where it was measured 40 times as fast as Huffman."""
        return {"entropy": "ans"} if device.type == "cuda" else {}

    def __post_init__(self) -> None:
        """Refuse unknown coders."""
        BoundedCodec.__post_init__(self)
        if self.entropy not in ("huffman", "ans"):
            raise SpecError(f"entropy must be 'huffman' or 'ans', not {self.entropy!r}")

    def list_engine(self) -> tuple[ListEngine, Bound] | None:
        """See ``Codec.list_engine``."""
        return (RowsEngine(), self.bound) if self.entropy == "ans" else None

    def encode_body(self, x: torch.Tensor, error_bound: float) -> Coded:
        """See ``BoundedCodec.encode_body``; outliers count in the distinct rows."""
        return self._encode([x], Bound.absolute(error_bound))[0]

    def encode_bodies(self, xs: Sequence[torch.Tensor]) -> Sequence[Coded]:
        """See ``BoundedCodec.encode_bodies``; the range is taken from the distinct rows alone."""
        return self._encode(xs, self.bound)

    def _encode(self, xs: Sequence[torch.Tensor], bound: Bound) -> list[Coded]:
        filled = [k for k, x in enumerate(xs) if x.numel()]
        matrices = [_as_rows(xs[k]) for k in filled]
        coded: list[Coded] = [None] * len(xs)
        for k, one in zip(filled, encode_row_slices(matrices, bound, self.entropy), strict=True):
            coded[k] = layout.Body(*one) if isinstance(one, tuple) else one
        return coded

    def decode_body(self, opened: layout.Opened, out: torch.Tensor) -> None:
        """See ``BoundedCodec.decode_body``."""
        matrix = _as_rows(out)
        outliers = opened.positions, opened.values
        nbytes = decode_rows(opened.body, opened.step, *outliers, matrix, self.entropy)
        check_all_read(opened, nbytes)

    def decode_plain(
        self, payloads: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]
    ) -> Sequence[bool]:
        """See ``BoundedCodec.decode_plain``."""
        matrices = [_as_rows(out) for out in outs]
        decoded: list[bool] = decode_row_slices(payloads, matrices, self.entropy)
        return decoded
