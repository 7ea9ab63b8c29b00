"""SZ3 as a codec of ours, so that it can be trained with: the payload keeps the bound whatever SZ3 does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from tersor.codecs.bounded import BoundedCodec, Coded, put_outliers
from tersor.errors import BackendUnavailableError, CorruptDataError
from tersor.kernels.quantize import Grid
from tersor.raw_bytes import padded
from tersor.stages import payload as layout

_LENGTH_NBYTES = 8


def _pysz() -> Any:
    try:
        import pysz
    except ImportError as error:
        raise BackendUnavailableError(
            "codec 'sz3' needs pysz; install it with pip install 'tersor[peers]'"
        ) from error
    return pysz


@dataclass(frozen=True, kw_only=True, slots=True)
class Sz3(BoundedCodec):
    """SZ3 without prediction, its best way with looked-up rows; CPU, float32 and float64.

    What SZ3 does not bring back within the bound is stored exactly. Not in the registry: only this
    package's training reads its payloads. SZ3 must be trusted with bytes from peers: a stream that
    decodes to another size is refused, but its parser is not ours.
    """

    codec_id: ClassVar[str] = "sz3"

    def __post_init__(self) -> None:
        """Refuse to be made without pysz."""
        BoundedCodec.__post_init__(self)
        _pysz()

    def supports(self, dtype: torch.dtype) -> bool:
        """SZ3 knows two float dtypes."""
        return dtype in (torch.float32, torch.float64)

    def encode_body(self, x: torch.Tensor, error_bound: float) -> Coded:
        """See ``BoundedCodec.encode_body``."""
        grid = Grid.for_bound(error_bound, x.dtype)
        if grid is None:
            return None
        pysz = _pysz()
        values = x.detach().reshape(-1)
        finite = torch.where(torch.isfinite(values), values, 0)
        config = pysz.szConfig()
        config.errorBoundMode = pysz.szErrorBoundMode.ABS
        config.absErrorBound = error_bound
        config.cmprAlgo = pysz.szAlgorithm.NOPRED
        stream, _ = pysz.sz.compress(finite.numpy(), config)
        decoded = _decompressed(stream, values)
        error = (decoded.double() - values.double()).abs()
        positions = torch.nonzero(~(error <= error_bound)).view(-1)
        length = stream.nbytes
        data = torch.zeros(layout.HEADER.size + _LENGTH_NBYTES + padded(length), dtype=torch.uint8)
        start = layout.HEADER.size + _LENGTH_NBYTES
        data[layout.HEADER.size : start] = torch.tensor([length]).view(torch.uint8)
        data[start : start + length] = torch.from_numpy(stream.view(np.uint8))
        return layout.Body(grid.step, data, positions, values[positions])

    def decode_body(self, opened: layout.Opened, out: torch.Tensor) -> None:
        """See ``BoundedCodec.decode_body``."""
        body = opened.body
        length = int(body[:_LENGTH_NBYTES].view(torch.int64)) if body.numel() >= 8 else -1
        if not 0 < length <= body.numel() - _LENGTH_NBYTES:
            raise CorruptDataError("an SZ3 payload is truncated")
        stream = body[_LENGTH_NBYTES : _LENGTH_NBYTES + length].numpy()
        out.view(-1).copy_(_decompressed(stream, out.view(-1)))
        put_outliers(opened, out)


def _decompressed(stream: Any, like: torch.Tensor) -> torch.Tensor:
    dtype = np.float64 if like.dtype == torch.float64 else np.float32
    decoded, _ = _pysz().sz.decompress(np.ascontiguousarray(stream), dtype, (like.numel(),))
    if decoded.size != like.numel():
        raise CorruptDataError("an SZ3 stream decodes to another size")
    return torch.from_numpy(decoded).view(-1)
