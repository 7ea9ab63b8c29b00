"""``zfp``: the transform coder zfp, which works on blocks of 4 values per axis, through zfpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from tersor.codecs.foreign.codec import ForeignCodec
from tersor.codecs.registry import register

_SHAPE_NBITS: Final = 48
"""Bits for the shape in zfp's header, divided equally among the axes."""


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Zfp(ForeignCodec):
    """zfp in its fixed-accuracy mode."""

    codec_id: ClassVar[str] = "zfp"
    package: ClassVar[str] = "zfpy"

    def takes_axes(self, sizes: Sequence[int]) -> bool:
        """See ``ForeignCodec.takes_axes``."""
        return len(sizes) <= 4 and max(sizes) <= 2 ** (_SHAPE_NBITS // len(sizes))

    def to_stream(self, values: np.ndarray, error_bound: float) -> Any:
        """See ``ForeignCodec.to_stream``."""
        return self.library().compress_numpy(values, tolerance=error_bound)

    def from_stream(self, stream: np.ndarray, dtype: np.dtype[Any], axes: tuple[int, ...]) -> Any:
        """See ``ForeignCodec.from_stream``."""
        zfpy = self.library()
        header = zfpy.header(stream)
        sizes = tuple(header[name] for name in ("nw", "nz", "ny", "nx") if header[name])
        # check the header before zfpy allocates the size that it claims
        if sizes != axes or np.dtype(header["type"]) != dtype:
            raise ValueError("its header says another shape or dtype")
        return zfpy.decompress_numpy(stream)
