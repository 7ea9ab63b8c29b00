"""``rows``: each distinct row once, entropy-coded. The codec for looked-up embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from tersor.chunks import MAX_CHUNK_VALUES
from tersor.codecs.bounded import BoundedCodec
from tersor.codecs.codec import pad_payload
from tersor.codecs.registry import register
from tersor.errors import CorruptDataError, SpecError
from tersor.kernels.rows import decode_rows, encode_rows
from tersor.stages import payload as layout
from tersor.types import Bound


def row_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return (rows, values per row): rows run along the last axis; a vector is one row."""
    width = shape[-1] if shape else 1
    return (torch.Size(shape).numel() // width if width else 0), width


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Rows(BoundedCodec):
    """Quantize the distinct rows, merge those with equal codes, entropy-code what is left.

    Rows run along the last axis. ``entropy`` is ``huffman`` (smaller for small tensors, fast on a
    CPU) or ``ans`` (fast on a GPU).
    """

    codec_id: ClassVar[str] = "rows"

    entropy: Literal["huffman", "ans"] = "huffman"

    def __post_init__(self) -> None:
        """Refuse unknown coders."""
        BoundedCodec.__post_init__(self)
        if self.entropy not in ("huffman", "ans"):
            raise SpecError(f"entropy must be 'huffman' or 'ans', not {self.entropy!r}")

    def encode_tensor(self, x: torch.Tensor) -> torch.Tensor:
        """See ``Codec.encode_tensor``; the range is taken from the distinct rows alone."""
        if x.numel() > MAX_CHUNK_VALUES:
            raise SpecError(f"one payload holds at most {MAX_CHUNK_VALUES} values; use encode")
        return pad_payload(self.seal(x, self.bound), x.numel())

    def encode_body(self, x: torch.Tensor, bound: Bound) -> layout.Body | None:
        """See ``BoundedCodec.encode_body``; outliers count in the distinct rows."""
        matrix = x.view(row_shape(tuple(x.shape)))
        encoded = encode_rows(matrix, bound, self.entropy, layout.HEADER.size)
        return None if encoded is None else layout.Body(*encoded)

    def decode_body(self, opened: layout.Opened, out: torch.Tensor) -> None:
        """See ``BoundedCodec.decode_body``."""
        matrix = out.view(row_shape(tuple(out.shape)))
        nbytes = decode_rows(
            opened.body, opened.step, opened.positions, opened.values, matrix, self.entropy
        )
        if nbytes != opened.body.numel():
            raise CorruptDataError("coded rows have bytes left over")
