"""Plain payloads: coded, without outliers and without padding. Lists of small tensors make many.

They begin with 24 bytes of header and are written and read by one kernel call for a whole list;
all other payloads are put together and taken apart one by one, above the kernels.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tersor.errors import CorruptDataError
from tersor.kernels.payload.layout import CODED, HEADER, exact_nbytes
from tersor.kernels.quantize.encoded import Encoded
from tersor.kernels.quantize.grid import is_step
from tersor.raw_bytes import from_struct


def seal_if_plain(x: torch.Tensor, encoded: Encoded | None) -> torch.Tensor | Encoded | None:
    """Return the payload of ``x`` if it is plain and smaller than ``x``; else ``encoded``.

    The room for the header is filled in place: with zeros where the payload is not plain.
    """
    if encoded is None:
        return None
    step, data, positions, _ = encoded
    if positions.numel() or data.numel() >= exact_nbytes(x.nbytes):
        data[: HEADER.size] = 0
        return encoded
    header = HEADER.pack(CODED, 0, step, data.numel() - HEADER.size)
    data[: HEADER.size] = from_struct(header, data.device)
    return data


def decode_if_plain(
    payload: torch.Tensor, out: torch.Tensor, decode: Callable[[torch.Tensor, float], int]
) -> bool:
    """Decode a payload with ``decode(body, step)``, which returns the bytes read.

    Returns False if the payload is not plain or not well formed; ``out`` is then undefined.
    """
    head = payload[: HEADER.size].cpu().numpy().tobytes()
    if len(head) < HEADER.size or out.numel() == 0:
        return False
    _, _, step, body_nbytes = HEADER.unpack(head)
    whole = HEADER.size + body_nbytes == payload.numel() and body_nbytes % 8 == 0
    if head != HEADER.pack(CODED, 0, step, body_nbytes) or not whole:
        return False
    try:
        return is_step(step, out.dtype) and decode(payload[HEADER.size :], step) == body_nbytes
    except CorruptDataError:
        return False
