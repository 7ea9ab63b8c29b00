"""The base of codecs that wrap third-party libraries: finite input, a verified bound and a checksum.

The body of a payload:

```
offset size field
     0    8 nbytes    u64, bytes of the stream
     8    8 checksum  u64, xxh3_64 of the stream
    16      stream    as the library wrote it; padded to 8 bytes
```

The libraries' decoders may read or write out of bounds on damaged input and crash the process. The checksum protects
them from accidental damage. It does not protect against an attacker, who can compute it: decode untrusted payloads in
a separate process.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, ClassVar, Final

import numpy as np
import torch

from tersor.codecs.bounded import BoundedCodec
from tersor.errors import BackendUnavailableError, CorruptDataError
from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.payload.compose import (
    Opened,
    decode_payload,
    put_outliers,
    seal_smallest,
)
from tersor.kernels.payload.layout import HEADER
from tersor.kernels.quantize.body import Body
from tersor.kernels.quantize.grid import Grid, limits_of
from tersor.raw_bytes import checksum_of, padded, read_struct
from tersor.types import Bound

_STREAM: Final = struct.Struct("<QQ")
_REFUSALS: Final = (ArithmeticError, LookupError, RuntimeError, ValueError)
"""Errors that the libraries raise for values they cannot encode and bytes they cannot decode."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignCodec(BoundedCodec):
    """A codec that wraps a library for compressing float32 and float64 arrays within an absolute error.

    Values that the library does not decode to within the bound, NaN and infinities are stored exactly. A tensor that
    the library cannot encode is stored exactly as a whole. float16 and bfloat16 are encoded as float32. The library
    runs on the CPU, regardless of the tensor's device.
    """

    package: ClassVar[str]
    """Name of the module to import, and of the distribution to install."""

    @abstractmethod
    def to_stream(self, values: np.ndarray, error_bound: float) -> Any:
        """Encode an array of finite values, of a shape that ``axes`` returned; return the stream as bytes."""

    @abstractmethod
    def from_stream(self, stream: np.ndarray, dtype: np.dtype[Any], axes: tuple[int, ...]) -> Any:
        """Decode a stream into a new array; raise ``ValueError`` if the stream has another shape."""

    def axes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape to pass to the library: without axes of size 1, and with leading axes merged.

        Only as many axes are merged as ``takes_axes`` requires.
        """
        sizes = [size for size in shape if size != 1] or [1]
        while not self.takes_axes(sizes):
            sizes[:2] = [sizes[0] * sizes[1]]
        return tuple(sizes)

    def takes_axes(self, sizes: Sequence[int]) -> bool:
        """True if the library accepts an array of that shape."""
        return len(sizes) <= 4

    @classmethod
    def library(cls) -> Any:
        """Import the library.

        Raises:
            BackendUnavailableError: the library is not installed.
        """
        try:
            return import_module(cls.package)
        except ImportError as error:
            raise BackendUnavailableError(
                f"codec {cls.codec_id!r} needs {cls.package}; "
                "install it with pip install 'tersor[fields]'"
            ) from error

    def encode(
        self, xs: Sequence[torch.Tensor], bounds: Sequence[Bound] | None = None
    ) -> EncodedList:
        """See ``Codec.encode``."""
        payloads = []
        for k, x in enumerate(xs):
            own = self if bounds is None else replace(self, bound=bounds[k])
            body = self._body(x, own.resolve_bound(x)) if x.numel() else None
            payloads.append(seal_smallest(x, body))
        return EncodedList.apart(payloads, xs)

    def decode(self, encoded: EncodedList, outs: Sequence[torch.Tensor]) -> None:
        """See ``Codec.decode``."""
        for payload, out in zip(encoded.payloads(), outs, strict=True):
            decode_payload(payload, out, self._decode_body)

    def _body(self, x: torch.Tensor, error_bound: float) -> Body | None:
        """Return the stream and the outliers; None if the library cannot encode the tensor."""
        grid = Grid.for_bound(error_bound, x.dtype)
        if grid is None:
            return None
        # outside the try below, so that a missing library is reported instead of causing exact storage
        self.library()
        values = x.detach().cpu()
        computed_in = torch.promote_types(x.dtype, torch.float32)
        known = _filled(values.view(-1).to(computed_in).numpy())
        bound = min(error_bound, limits_of(x.dtype).largest_bound)
        try:
            stream = self.to_stream(known.reshape(self.axes(tuple(x.shape))), bound)
            stream = np.frombuffer(stream, np.uint8)
            error = self._decoded(stream, values).double()
        except _REFUSALS:
            return None
        error.sub_(values.view(-1)).abs_()
        positions = torch.nonzero(~(error <= error_bound)).view(-1).to(x.device)
        data = _sealed_stream(stream).to(x.device)
        return Body(grid.step, data, positions, x.view(-1)[positions])

    def _decode_body(self, opened: Opened, out: torch.Tensor) -> int:
        self.library()
        stream = _checked_stream(opened)
        out.view(-1).copy_(self._decoded(stream, out))
        put_outliers(opened, out)
        return _STREAM.size + padded(stream.size)

    def _decoded(self, stream: np.ndarray, like: torch.Tensor) -> torch.Tensor:
        """Decode a stream of the shape of ``like``; return its values flat, in the dtype of ``like``."""
        dtype = np.dtype(limits_of(like.dtype).compute)
        try:
            decoded = self.from_stream(stream, dtype, self.axes(tuple(like.shape)))
        except _REFUSALS as error:
            words = " ".join(str(error).split())
            raise CorruptDataError(f"{self.package} cannot decode a stream: {words}") from error
        return torch.from_numpy(decoded).view(-1).to(like.dtype)


def _filled(values: np.ndarray) -> np.ndarray:
    """Replace NaN and infinities, which break the libraries, with the preceding finite value or 0."""
    finite = np.isfinite(values)
    if finite.all():
        return values
    last = np.maximum.accumulate(np.where(finite, np.arange(values.size), 0))
    return np.where(finite[last], values[last], values.dtype.type(0))


def _sealed_stream(stream: np.ndarray) -> torch.Tensor:
    """Return a payload with space for its header, followed by the body of the stream."""
    start = HEADER.size + _STREAM.size
    data = np.zeros(start + padded(stream.size), dtype=np.uint8)
    _STREAM.pack_into(data.data, HEADER.size, stream.size, checksum_of(stream.data))
    data[start : start + stream.size] = stream
    return torch.from_numpy(data)


def _checked_stream(opened: Opened) -> np.ndarray:
    """Verify the size and checksum of the stream in a body, and return a copy of it."""
    body = opened.body.cpu()
    nbytes, checksum = read_struct(_STREAM, body, slice(0))
    if _STREAM.size + padded(nbytes) != body.numel():
        raise CorruptDataError("a stream has another size than its payload")
    stream = body.numpy()[_STREAM.size : _STREAM.size + nbytes].copy()
    if checksum_of(stream.data) != checksum:
        raise CorruptDataError("a stream is damaged: its checksum does not match")
    return stream
