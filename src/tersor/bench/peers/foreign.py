"""SZ3 and zfp, called as our codecs of the same names do, but without verifying the bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch

from tersor.bench.peers.peer import SlicePeer
from tersor.codecs.foreign.codec import ForeignCodec
from tersor.codecs.foreign.sz3 import Sz3
from tersor.codecs.foreign.zfp import Zfp
from tersor.types import Bound

_UNUSED: Final = Bound.absolute(0.0)
_LIBRARIES: Final[Mapping[str, tuple[Callable[..., ForeignCodec], str, str, dict[str, str]]]] = {
    "sz3": (Sz3, "pysz", "absolute bound given", {"algorithm": "interp-lorenzo"}),
    # by far its best option for looked-up rows and noise
    "sz3-nopred": (Sz3, "pysz", "absolute bound given", {"algorithm": "nopred"}),
    "zfp": (Zfp, "zfpy", "tolerance given", {}),
}
"""Our codec, the distribution, the note, and the options of each peer, by its name.

SZ3 is called with its default algorithm and without prediction, zfp in fixed-accuracy mode.
"""
_Encoded = tuple[Any, tuple[int, ...]]


class ForeignPeer(SlicePeer):
    """A library with an absolute bound, using one thread."""

    slow = True

    def __init__(self, name: str) -> None:
        """Load the library for a name in ``_LIBRARIES``; fails if it is not installed."""
        kind, self.distribution, self.note, self._options = _LIBRARIES[name]
        super().__init__()
        self.name = name
        self._codec: ForeignCodec = kind(bound=_UNUSED, **self._options)
        self._codec.library()

    def options(self) -> dict[str, Any]:
        """Return the algorithm if the library has several."""
        return dict(self._options)

    def encode(self, x: torch.Tensor, error_bound: float) -> _Encoded:
        """Compress, and return the stream with the shape that the library was given."""
        axes = self._codec.axes(tuple(x.shape))
        return self._codec.to_stream(x.numpy().reshape(axes), error_bound), axes

    def decode(self, encoded: _Encoded, out: torch.Tensor) -> torch.Tensor:
        """Decompress into memory that the library allocates."""
        stream, axes = encoded
        decoded = self._codec.from_stream(stream, np.dtype(np.float32), axes)
        return torch.from_numpy(decoded).view(out.shape)

    def nbytes(self, encoded: _Encoded) -> int:
        """Return the size of the stream."""
        return len(encoded[0])
