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
"""What SZ3 predicts values by, as pysz calls it: interpolation or, where a sample says that it is
better, Lorenzo; interpolation; blocks of Lorenzo or linear regression; nothing; or no loss at all."""


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Sz3(ForeignCodec):
    """SZ3 with one of its algorithms."""

    codec_id: ClassVar[str] = "sz3"
    package: ClassVar[str] = "pysz"

    algorithm: str = "interp-lorenzo"

    def __post_init__(self) -> None:
        """Refuse an algorithm that SZ3 does not have."""
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
        """See ``ForeignCodec.from_stream``; pysz itself compares the number of values first."""
        return self.library().sz.decompress(stream, dtype, axes)[0]
