"""``sz3``: the error-bounded compressor SZ3, through pysz."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from tersor.codecs.bounded import BoundedCodec
from tersor.codecs.foreign.codec import ForeignCodec
from tersor.codecs.registry import register
from tersor.errors import SpecError

ALGORITHMS: Final[Mapping[str, str]] = {
    "interp-lorenzo": "INTERP_LORENZO",
    "interp": "INTERP",
    "lorenzo-reg": "LORENZO_REG",
    "nopred": "NOPRED",
    "lossless": "LOSSLESS",
}
"""SZ3's prediction algorithms, by option, with their names in pysz.

In order: interpolation, or Lorenzo where a sample shows that it is better; interpolation; blocks of Lorenzo or linear
regression; no prediction; lossless."""


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Sz3(ForeignCodec):
    """SZ3 with one of its prediction algorithms."""

    codec_id: ClassVar[str] = "sz3"
    package: ClassVar[str] = "pysz"

    algorithm: str = "interp-lorenzo"

    def __post_init__(self) -> None:
        """Reject an algorithm that SZ3 does not have."""
        BoundedCodec.__post_init__(self)
        if self.algorithm not in ALGORITHMS:
            raise SpecError(
                f"algorithm must be one of {', '.join(ALGORITHMS)}, not {self.algorithm!r}"
            )

    def to_stream(self, values: np.ndarray, error_bound: float) -> Any:
        """See ``ForeignCodec.to_stream``."""
        pysz = self.library()
        config = pysz.szConfig()
        config.errorBoundMode = pysz.szErrorBoundMode.ABS
        config.absErrorBound = error_bound
        config.cmprAlgo = getattr(pysz.szAlgorithm, ALGORITHMS[self.algorithm])
        return pysz.sz.compress(values, config)[0]

    def from_stream(self, stream: np.ndarray, dtype: np.dtype[Any], axes: tuple[int, ...]) -> Any:
        """See ``ForeignCodec.from_stream``; pysz itself verifies the number of values first."""
        return self.library().sz.decompress(stream, dtype, axes)[0]
