"""How long the payload of groups is, where it goes, and which groups a program of a GPU holds whole."""

from __future__ import annotations

from typing import Final

import torch

from tersor.division import ceil_div
from tersor.raw_bytes import empty

_SCALE_NBYTES: Final = 4
_MAX_WHOLE_GROUP: Final = 4096
"""The largest group that one program holds: with 64 rows of each half, two warps."""


def is_held_whole(group: int) -> bool:
    """True if one program of a GPU holds whole groups."""
    return 32 <= group <= _MAX_WHOLE_GROUP and group & (group - 1) == 0


def payload_nbytes(numel: int, nbits: int, group: int) -> int:
    """Return the bytes of the scales and fields of ``numel`` values."""
    return ceil_div(numel, group) * (_SCALE_NBYTES + group * nbits // 8)


def outputs(
    num_groups: int,
    nbits: int,
    group: int,
    out: tuple[torch.Tensor, torch.Tensor] | None,
    device: torch.device,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``out``, whose sizes torch checks, or new scales and data."""
    data_nbytes = num_groups * group * nbits // 8
    if out is not None:
        return out[0].view(num_groups), out[1].view(data_nbytes)
    scales = empty((num_groups,), torch.float32, device)
    return scales, empty((data_nbytes,), torch.uint8, device)
