"""SZ3 and zfp, called as our codecs of these names call them, but without verifying the bound."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Final

import numpy as np
import torch

from tersor.bench.peers.peer import SlicePeer
from tersor.codecs.foreign.codec import ForeignCodec
from tersor.codecs.foreign.sz3 import Sz3 as Sz3Codec
from tersor.codecs.foreign.zfp import Zfp as ZfpCodec
from tersor.types import Bound

_UNUSED: Final = Bound.absolute(0.0)
_Encoded = tuple[Any, tuple[int, ...]]


class ForeignPeer(SlicePeer):
    """A library with an absolute bound, one thread."""

    slow = True

    def __init__(self) -> None:
        """Refuse to be made where the library is not installed."""
        super().__init__()
        self._codec = self.codec()
        self._codec.library()

    @abstractmethod
    def codec(self) -> ForeignCodec:
        """Return the codec that calls the library; its bound is not used."""

    def encode(self, x: torch.Tensor, error_bound: float) -> _Encoded:
        """Compress; keep the shape that the library was given."""
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


class Sz3(ForeignPeer):
    """SZ3's default algorithm."""

    name = "sz3"
    distribution = "pysz"
    note = "absolute bound given"
    algorithm = "interp-lorenzo"

    def codec(self) -> ForeignCodec:
        """See ``ForeignPeer.codec``."""
        return Sz3Codec(bound=_UNUSED, algorithm=self.algorithm)

    def options(self) -> dict[str, Any]:
        """Return the algorithm."""
        return {"algorithm": self.algorithm}


class Sz3NoPrediction(Sz3):
    """SZ3 without prediction: its best choice by far on looked-up rows and noise."""

    name = "sz3-nopred"
    algorithm = "nopred"


class Zfp(ForeignPeer):
    """zfp in fixed-accuracy mode."""

    name = "zfp"
    distribution = "zfpy"
    note = "tolerance given"

    def codec(self) -> ForeignCodec:
        """See ``ForeignPeer.codec``."""
        return ZfpCodec(bound=_UNUSED)
