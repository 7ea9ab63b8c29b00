"""``group2``: two bits per value between the minimum and maximum of each group, as in ActNN."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from tersor.codecs.group import check_seed
from tersor.codecs.pipeline import FixedCodec
from tersor.codecs.registry import register
from tersor.errors import SpecError
from tersor.kernels.batch import decode_ranges, encode_ranges
from tersor.kernels.batch.pipeline import Pipeline, RangeLevels, RangePipeline
from tersor.kernels.group.ranges.layout import payload_nbytes
from tersor.kernels.runtime.op import Op


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Group2(FixedCodec):
    """Four levels from the minimum to the maximum of each group, both stored as bfloat16.

    With ``seed=None``, values are rounded to nearest. With a number, they are rounded stochastically; the result is
    reproducible from the seed and the position in the chunk, as in ``group4``. Give every step and tensor its own seed.

    The error of a value is at most half a level, or one level with ``seed``. A level is a third of the range of the
    group, its maximum minus its minimum. Both ends are rounded outwards, which widens the range by at most 2**-7 of
    itself plus 2**-7 of the minimum's magnitude. float32 arithmetic adds 2**-20 of the largest magnitude; in float16 and bfloat16
    the error at most doubles. Ranges below 2**-100 are treated as 0, and magnitudes above 2**126 as 2**126. A group
    with a NaN or an infinity decodes to NaN.
    """

    codec_id: ClassVar[str] = "group2"
    takes_seed: ClassVar[bool] = True
    encode_op: ClassVar[Op] = encode_ranges
    decode_op: ClassVar[Op] = decode_ranges
    guarantee: ClassVar[str] = (
        "a fixed size; error at most a sixth of the group's range, a third with seed; groups with NaN "
        "or infinities become NaN"
    )

    group: int = 256
    seed: int | None = None

    def __post_init__(self) -> None:
        """Reject invalid options."""
        check_seed(self.seed)
        if type(self.group) is not int or not 4 <= self.group <= 2**20 or self.group % 4:
            raise SpecError(f"group must be a multiple of 4 from 4 to 1048576, not {self.group}")

    def pipeline(self) -> RangePipeline:
        """Return a pipeline that only quantizes."""
        return Pipeline(None, RangeLevels(self.group), 0, None)

    def seeding(self, seed: int | None) -> dict[str, int | None]:
        """See ``FixedCodec.seeding``."""
        check_seed(seed)
        return {"seed": self.seed if seed is None else seed}

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Return the exact size of the payload."""
        del dtype
        return payload_nbytes(torch.Size(shape).numel(), self.group)
