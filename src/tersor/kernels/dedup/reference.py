"""Row de-duplication, plain torch."""

from __future__ import annotations

import torch

from tersor.errors import CorruptDataError
from tersor.kernels.dedup.layout import IndexLayout


def unique_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Number the distinct rows in the order in which they first appear.

    Args:
        rows: uint8 [num_rows, row_nbytes]; rows are equal if all their bytes are.

    Returns:
        index: int32 [num_rows], the distinct row that each row equals;
        first: int64 [num_unique], where each distinct row first appears, ascending.

    Example:
        >>> index, first = unique_rows(torch.tensor([[7], [9], [7]], dtype=torch.uint8))
        >>> index.tolist(), first.tolist()
        ([0, 1, 0], [0, 1])
    """
    num_rows = rows.shape[0]
    if num_rows == 0:
        return rows.new_zeros(0, dtype=torch.int32), rows.new_zeros(0, dtype=torch.int64)
    if rows.shape[1] == 0:
        return rows.new_zeros(num_rows, dtype=torch.int32), rows.new_zeros(1, dtype=torch.int64)
    sorted_rows, inverse = torch.unique(rows, dim=0, return_inverse=True)
    position = torch.arange(num_rows, device=rows.device)
    first = torch.full((len(sorted_rows),), num_rows, dtype=torch.int64, device=rows.device)
    first.scatter_reduce_(0, inverse, position, "amin")
    rank = torch.empty_like(first)
    rank[first.argsort()] = torch.arange(len(first), device=rows.device)
    return rank[inverse].to(torch.int32), first.sort().values


def pack_index(index: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """Pack a row index as ``unique_rows`` returns it. Layout: ``dedup/layout.py``."""
    layout = IndexLayout(index.numel(), first.numel())
    new = torch.zeros(index.numel(), dtype=torch.int64, device=index.device)
    new[first] = 1
    packed = torch.zeros(layout.nbytes, dtype=torch.uint8, device=index.device)
    packed[: layout.refs_start] = _bits_to_bytes(new)
    refs = index[new == 0].to(torch.int64)
    fields = (refs[:, None] >> torch.arange(layout.width, device=index.device)) & 1
    data = _bits_to_bytes(fields.reshape(-1))
    packed[layout.refs_start : layout.refs_start + data.numel()] = data
    return packed


def _bits_to_bytes(bits: torch.Tensor) -> torch.Tensor:
    full = torch.zeros((bits.numel() + 7) // 8 * 8, dtype=torch.int64, device=bits.device)
    full[: bits.numel()] = bits
    weights = 1 << torch.arange(8, device=bits.device)
    return (full.view(-1, 8) * weights).sum(1).to(torch.uint8)


def _bytes_to_bits(data: torch.Tensor, num_bits: int) -> torch.Tensor:
    bits = (data[:, None].to(torch.int64) >> torch.arange(8, device=data.device)) & 1
    return bits.reshape(-1)[:num_bits]


def unpack_index(packed: torch.Tensor, num_rows: int, num_unique: int) -> torch.Tensor:
    """Return the int64 index that ``pack_index`` packed.

    Raises:
        CorruptDataError: the bytes are no index of ``num_rows`` rows with ``num_unique`` values.
    """
    layout = IndexLayout(num_rows, num_unique)
    if packed.numel() < layout.nbytes:
        raise CorruptDataError("a row index is truncated")
    new = _bytes_to_bits(packed[: layout.refs_start], num_rows)
    if int(new.sum()) != num_unique:
        raise CorruptDataError("a row index marks the wrong number of new rows")
    index = new.cumsum(0) - 1
    num_refs = num_rows - num_unique
    bits = _bytes_to_bits(packed[layout.refs_start : layout.nbytes], num_refs * layout.width)
    weights = 1 << torch.arange(layout.width, device=packed.device)
    refs = (bits.view(num_refs, layout.width) * weights).sum(1)
    if bool((refs >= max(1, num_unique)).any()):
        raise CorruptDataError("a row index points past the last distinct row")
    index[new == 0] = refs
    return index
