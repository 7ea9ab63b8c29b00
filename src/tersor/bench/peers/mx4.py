"""MX4: the microscaling format of the Open Compute Project with 4-bit floats.

Size and error are those of the format. Its speed is that of plain torch; a kernel would be faster.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import torch

from tersor.bench.core.candidate import SliceCandidate

_BLOCK: Final = 32
_LEVELS: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes that e2m1 can represent, indexed by its three lower bits."""
_MIDDLES: Final = tuple((a + b) / 2 for a, b in pairwise(_LEVELS))
_MAX_EXPONENT: Final = 2
"""Exponent of the largest e2m1 value, 6 = 1.5 * 2**2."""
_BIAS: Final = 127


class Mx4(SliceCandidate):
    """Blocks of 32 e2m1 values that share a power of two (e8m0): 17 bytes instead of 128.

    The shared exponent is that of the block's largest magnitude, minus 2. Magnitudes are rounded to the
    nearest level, with ties to the level with an even code, and saturate at the largest level.
    """

    name = "mx4"
    version = "ocp-mx-1.0"
    bounded = False
    note = "the format in plain torch: size and error are its own, speed is not"

    def options(self) -> dict[str, Any]:
        """Return the block size and the formats."""
        return {"block": _BLOCK, "scale": "e8m0", "values": "e2m1"}

    def encode(self, x: torch.Tensor, error_bound: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return one scale per block, and the values packed two per byte."""
        del error_bound
        flat = x.reshape(-1)
        padded = torch.nn.functional.pad(flat, (0, -flat.numel() % _BLOCK)).view(-1, _BLOCK)
        exponent = torch.frexp(padded.abs().amax(dim=1)).exponent - 1 - _MAX_EXPONENT
        exponent = exponent.clamp(-_BIAS, _BIAS)
        scaled = torch.ldexp(padded, -exponent[:, None])
        middles = torch.tensor(_MIDDLES, device=x.device)
        below = torch.bucketize(scaled.abs(), middles, right=False)
        above = torch.bucketize(scaled.abs(), middles, right=True)
        codes = torch.where(below % 2 == 0, below, above)
        codes = codes.to(torch.uint8) | (scaled < 0).to(torch.uint8) << 3
        return (exponent + _BIAS).to(torch.uint8), codes[:, ::2] | codes[:, 1::2] << 4

    def decode(self, encoded: tuple[torch.Tensor, torch.Tensor], out: torch.Tensor) -> torch.Tensor:
        """Decode into ``out``."""
        scales, pairs = encoded
        levels = torch.tensor([*_LEVELS, *(-level for level in _LEVELS)], device=out.device)
        codes = torch.stack((pairs & 15, pairs >> 4), dim=2).view(-1, _BLOCK)
        values = torch.ldexp(levels[codes.long()], scales[:, None].to(torch.int32) - _BIAS)
        out.view(-1).copy_(values.view(-1)[: out.numel()])
        return out

    def nbytes(self, encoded: tuple[torch.Tensor, torch.Tensor]) -> int:
        """Return the size of scales and values."""
        return sum(part.numel() for part in encoded)
