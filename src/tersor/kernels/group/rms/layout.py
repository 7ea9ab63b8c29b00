"""Codes of groups scaled by their root mean square, and the layout of a body.

```
head       u8 flags, bit 0: zeros and signs are exact; 7 zero bytes
fractions  u16[top], only if bit 0 is set; padded to 8 bytes
scales     u16[num_groups], bits 30 to 15 of a float32; padded to 8 bytes
symbols    a rANS body with its frequencies, ``code + top`` of each value
```

Values are scaled in float32. A value that float32 cannot hold, or whose magnitude is 2**123 or more, is
an outlier: the payload stores it exactly, and its code is that of zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import torch

from tersor.division import ceil_div
from tersor.errors import CorruptDataError
from tersor.raw_bytes import padded

GROUP: Final = 256
"""Values per scale. No value exceeds sqrt(256) times the root mean square of its group, and a scale exceeds
the root mean square by at least a factor of 1 + 2**-12, so no code exceeds ``top_of`` the step."""
LARGEST_MAGNITUDE: Final = 2.0**123
"""Values of at least this magnitude are outliers, so the largest decoded value, 16 scales and a step, is finite."""
SMALLEST_SCALE: Final = 2.0**-120
"""Lower limit of scales, also for groups of zeros: the reciprocal of a step is finite, and only code 0 decodes
to zero."""
MAX_TOP: Final = 127
LEAST_STEP: Final = 16 / MAX_TOP
MOST_STEP: Final = 8.0
NUM_SAMPLED: Final = 64
"""Groups sampled to estimate the share of zeros, code frequencies and bin means: 16,384 values. On ResNet
activations this costs 0.4 to 1 % in size compared with counting all values, and saves a pass over them."""
ZEROS_PER_VALUE: Final = 20
"""If more than one in this many values is zero, zeros and signs are kept exact by default."""
HEAD_NBYTES: Final = 8
FRACTION_BITS: Final = 16
LEAST_FRACTION: Final = (1 << 12) - 1
"""Lower limit for the first bin: a sixteenth of a step, so that only code 0 decodes to zero."""
MIDDLE: Final = (1 << 15) - 1
"""Fraction of a bin without sampled values."""
SCALE_SHIFT: Final = 15
SCALE_LIMIT: Final = 0xFF00
"""Stored scales from this one on are not finite."""


class RmsCodes(NamedTuple):
    """The result of quantizing a tensor.

    Attributes:
        symbols: uint8, ``code + top`` of each value; ``top`` for an outlier.
        scales: int16 [num_groups], to be read as uint16.
        fractions: int16 [top], to be read as uint16; empty unless zeros and signs are exact.
        counts: int64 [alphabet], how often each symbol occurs in the sampled groups.
        positions: int64, positions of the outliers.
    """

    symbols: torch.Tensor
    scales: torch.Tensor
    fractions: torch.Tensor
    counts: torch.Tensor
    positions: torch.Tensor


def f32_step(step: float) -> float:
    """Return the step rounded to float32, as computations use it."""
    return float(np.float32(step))


def top_of(step: float) -> int:
    """Return the largest code of a value, in units of ``step`` root mean squares."""
    return min(MAX_TOP, math.ceil(16 / f32_step(step)))


def alphabet_of(step: float) -> int:
    """Return the number of symbols."""
    return 2 * top_of(step) + 1


def sampled_groups(num_groups: int) -> list[int]:
    """Return which groups are sampled: all, or ``NUM_SAMPLED`` evenly spread ones."""
    count = min(NUM_SAMPLED, num_groups)
    return [k * num_groups // count for k in range(count)]


def level_table(step: float, fractions: torch.Tensor) -> torch.Tensor:
    """Return what each symbol decodes to in a group of scale 1, float32 [alphabet].

    Code ``c > 0`` decodes to ``c`` steps or, if there are ``fractions``, to the mean of its bin: ``c - 1``
    steps plus 1 to 65536 parts of a step in 65536. Each level is one float32 product.
    """
    top = top_of(step)
    code = torch.arange(1, top + 1, device=fractions.device)
    if fractions.numel():
        parts = ((code - 1) << FRACTION_BITS) + (fractions.to(torch.int64) & 0xFFFF) + 1
    else:
        parts = code << FRACTION_BITS
    unit = torch.full((), f32_step(step) * 2.0**-FRACTION_BITS, device=fractions.device)
    levels = parts.to(torch.float32) * unit
    return torch.cat([-levels.flip(0), levels.new_zeros(1), levels])


@dataclass(frozen=True, slots=True)
class BodyLayout:
    """Where the parts of the body of ``numel`` values start."""

    numel: int
    step: float
    has_zeros: bool

    @property
    def num_groups(self) -> int:
        """Number of groups; the last one may be partial."""
        return ceil_div(self.numel, GROUP)

    @property
    def scales_start(self) -> int:
        """First byte of the scales."""
        return HEAD_NBYTES + (padded(2 * top_of(self.step)) if self.has_zeros else 0)

    @property
    def symbols_start(self) -> int:
        """First byte of the coded symbols."""
        return self.scales_start + padded(2 * self.num_groups)

    @classmethod
    def of(cls, body: torch.Tensor, numel: int, step: float) -> BodyLayout:
        """Read the head of a body.

        Raises:
            CorruptDataError: the head is invalid, or the body too short.
        """
        head = int(body[:HEAD_NBYTES].view(torch.int64)[0]) if body.numel() >= HEAD_NBYTES else -1
        if head not in (0, 1):
            raise CorruptDataError("a body of scaled groups has an impossible head")
        layout = cls(numel, step, head == 1)
        if body.numel() < layout.symbols_start:
            raise CorruptDataError("a body of scaled groups is truncated")
        return layout
