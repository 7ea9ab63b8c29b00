"""``rows``: each distinct row once, entropy-coded. The codec for looked-up embeddings.

```
offset size field
     0    4 num_unique
     4    1 index_mode    0 packed, 1 entropy-coded
     5    3 zero
     8      index         mode 0: dedup/layout.py; mode 1: an entropy body of num_rows codes, 0 for
                          a new row and 1 + its number for a repeated one
            rows          an entropy body of num_unique * width codes
```

Outlier positions count in the distinct rows, not in the tensor.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal

import torch

from tersor.codecs.bounded import BoundedCodec, put_outliers
from tersor.codecs.registry import register
from tersor.errors import CorruptDataError, SpecError
from tersor.kernels.dedup import pack_index, unpack_index
from tersor.kernels.dedup.layout import IndexLayout
from tersor.kernels.quantize import Grid
from tersor.kernels.symbols import Symbols, dequantize_symbols
from tersor.stages import payload as layout
from tersor.stages.encoders.entropy import AnsEncoder, EntropyEncoder, HuffmanEncoder
from tersor.stages.predictors import rows
from tersor.stages.raw_bytes import from_struct

HEADER: Final = struct.Struct("<IB3x")
PACKED, CODED = 0, 1


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

    def _encoder(self) -> EntropyEncoder:
        return HuffmanEncoder() if self.entropy == "huffman" else AnsEncoder()

    def encode_body(self, x: torch.Tensor, grid: Grid) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the body, and the outliers' positions in the distinct rows."""
        num_rows, width = rows.row_shape(tuple(x.shape))
        matrix = x.view(num_rows, width)
        index, first = rows.distinct(matrix)
        encoder = self._encoder()
        mapped, positions = encoder.quantize_map(_select(matrix, first), grid)
        if positions.numel() == 0 and mapped.escape_positions.numel() == 0:
            # rows that differ by less than the bound have equal codes now
            codes = mapped.symbols.view(-1, width)
            second_index, second_first = rows.distinct(codes)
            if second_first.numel() < first.numel():
                mapped = replace(mapped, symbols=codes[second_first].view(-1))
                index, first = second_index[index.long()], first[second_first]
        packed_index, mode = self._encode_index(index, first)
        header = HEADER.pack(first.numel(), mode)
        head = from_struct(header, x.device)
        return torch.cat([head, packed_index, encoder.encode_mapped(mapped)]), positions

    def _encode_index(self, index: torch.Tensor, first: torch.Tensor) -> tuple[torch.Tensor, int]:
        """Return the smaller of the packed and the entropy-coded index."""
        codes = index + 1
        codes[first] = 0
        coded = self._encoder().encode(codes)
        if coded.numel() < IndexLayout(index.numel(), first.numel()).nbytes:
            return coded, CODED
        packed: torch.Tensor = pack_index(index, first)
        return packed, PACKED

    def seal(
        self, x: torch.Tensor, grid: Grid, body: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        """Take outlier values from the distinct rows, in whose order they are counted."""
        if positions.numel():
            num_rows, width = rows.row_shape(tuple(x.shape))
            matrix = x.view(num_rows, width)
            x = _select(matrix, rows.distinct(matrix)[1])
        return layout.seal(x, layout.CODED, grid.step, body, positions)

    def decode_body(self, opened: layout.Opened, out: torch.Tensor) -> None:
        """Decode the distinct rows and gather them."""
        num_rows, width = rows.row_shape(tuple(out.shape))
        body = opened.body
        if body.numel() < HEADER.size:
            raise CorruptDataError("coded rows are truncated")
        num_unique, mode = HEADER.unpack(body[: HEADER.size].cpu().numpy().tobytes())
        if mode not in (PACKED, CODED) or not 1 <= num_unique <= num_rows:
            raise CorruptDataError("coded rows have an impossible index")
        index, index_nbytes = self._decode_index(body[HEADER.size :], mode, num_rows, num_unique)
        start = HEADER.size + index_nbytes
        mapped, nbytes = self._encoder().decode_mapped(body[start:], num_unique * width)
        if start + nbytes != body.numel():
            raise CorruptDataError("coded rows have bytes left over")
        if opened.positions.numel() and int(opened.positions.max()) >= num_unique * width:
            raise CorruptDataError("an outlier lies outside the distinct rows")
        _gather(mapped, opened, index, out.view(num_rows, width), num_unique)

    def _decode_index(
        self, body: torch.Tensor, mode: int, num_rows: int, num_unique: int
    ) -> tuple[torch.Tensor, int]:
        if mode == PACKED:
            index = unpack_index(body, num_rows, num_unique)
            return index, IndexLayout(num_rows, num_unique).nbytes
        codes, nbytes = self._encoder().decode(body, num_rows)
        codes = codes.to(torch.int64)
        new = codes == 0
        in_range = bool(((codes >= 0) & (codes <= num_unique)).all())
        if not in_range or int(new.sum()) != num_unique:
            raise CorruptDataError("a row index marks or names rows that do not exist")
        return torch.where(new, new.cumsum(0) - 1, codes - 1), nbytes


def _select(matrix: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    return matrix if first.numel() == matrix.shape[0] else matrix[first]


def _gather(
    mapped: Symbols,
    opened: layout.Opened,
    index: torch.Tensor,
    out: torch.Tensor,
    num_unique: int,
) -> None:
    """Write distinct row ``index[r]`` to row ``r`` of ``out``."""
    if num_unique == out.shape[0]:
        dequantize_symbols(mapped.symbols, mapped, opened.step, out)
        put_outliers(opened, out)
        return
    distinct = torch.empty(num_unique, out.shape[1], dtype=out.dtype, device=out.device)
    dequantize_symbols(mapped.symbols, mapped, opened.step, distinct)
    put_outliers(opened, distinct)
    torch.index_select(distinct, 0, index, out=out)
