"""Lists of slices on the device: one encoding or decoding of all, then one wait."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from tersor.kernels.flat.gpu import decode_flat, encode_planned
from tersor.kernels.payload.gpu import BODY, CODED, HEADER_NBYTES, MODE, OFFSET, OUTLIERS, SIZE
from tersor.kernels.payload.plain import Encoded
from tersor.kernels.slices.composition import pack_slice
from tersor.raw_bytes import padded
from tersor.types import Bound


def _by_dtype(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """Return the places of the tensors of each dtype."""
    places: dict[torch.dtype, list[int]] = {}
    for k, x in enumerate(tensors):
        places.setdefault(x.dtype, []).append(k)
    return list(places.values())


def _used(buffer: torch.Tensor, rows: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return the part of the buffer that holds payloads; a copy if that is less than half of it."""
    used_nbytes = rows[-1][OFFSET.value] + padded(rows[-1][SIZE.value])
    used = buffer[:used_nbytes]
    return used.clone() if 2 * used_nbytes < buffer.numel() else used


def _plain(buffer: torch.Tensor, row: Sequence[int]) -> torch.Tensor | None:
    """Return the payload that a row of a plan is about if it is plain."""
    size, start = HEADER_NBYTES.value + row[BODY.value], row[OFFSET.value]
    is_plain = row[MODE.value] == CODED.value and row[OUTLIERS.value] == 0
    return buffer[start : start + size] if is_plain and row[SIZE.value] == size else None


def pack_slices(
    xs: Sequence[torch.Tensor], bound: Bound, block: int = 32
) -> list[torch.Tensor | Encoded | None]:
    """See ``reference.pack_slices``; what has no plain payload is encoded anew, one by one."""
    if not xs:
        return []
    groups = _by_dtype(xs)
    encoded = [
        encode_planned([xs[k] for k in group], [bound] * len(group), block) for group in groups
    ]
    plans = iter(torch.cat([plan for _, plan, _ in encoded]).tolist())
    packed: dict[int, torch.Tensor] = {}
    for group, (buffer, _, _) in zip(groups, encoded, strict=True):
        rows = [next(plans) for _ in group]
        kept = _used(buffer, rows)
        payloads = ((k, _plain(kept, row)) for k, row in zip(group, rows, strict=True))
        packed |= {k: payload for k, payload in payloads if payload is not None}
    return [packed[k] if k in packed else pack_slice(x, bound, block) for k, x in enumerate(xs)]


def _on_device(numbers: Iterable[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(list(numbers), dtype=torch.int64).to(device)


def unpack_slices(
    payloads: Sequence[torch.Tensor], outs: Sequence[torch.Tensor], block: int = 32
) -> list[bool]:
    """See ``reference.unpack_slices``; payloads that are well formed but not plain are decoded too."""
    if not outs:
        return []
    aligned = [payload.clone() if payload.data_ptr() % 8 else payload for payload in payloads]
    groups = _by_dtype(outs)
    states = []
    for group in groups:
        origin, device = aligned[group[0]], outs[group[0]].device
        offsets = _on_device((aligned[k].data_ptr() - origin.data_ptr() for k in group), device)
        sizes = _on_device((aligned[k].numel() for k in group), device)
        states.append(decode_flat(origin, offsets, sizes, [outs[k] for k in group], block))
    order = [k for group in groups for k in group]
    state_of = dict(zip(order, torch.cat(states).tolist(), strict=True))
    return [state_of[k] == 0 for k in range(len(outs))]
