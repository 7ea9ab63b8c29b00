"""Kernels compiled, or loaded from the cache, before the first exchange is timed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch

from tersor.codecs.codec import Codec
from tersor.container import decode_batch, encode_batch
from tersor.types import TensorInfo

_NUM_ROWS: Final = 2048
_WIDTH: Final = 16
_NUM_DISTINCT: Final = 64


def compile_kernels(codecs: Iterable[Codec], dtype: torch.dtype, device: torch.device) -> None:
    """Encode and decode a made-up table with each codec, as an exchange would.

    Otherwise the first steps of a training would be seconds long, on all ranks: those that compile
    and those that wait for them.
    """
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(_NUM_DISTINCT, _WIDTH, generator=generator)
    places = torch.randint(0, _NUM_DISTINCT, (_NUM_ROWS,), generator=generator)
    repeated = values[places].to(device=device, dtype=dtype)
    distinct = torch.randn(_NUM_ROWS, _WIDTH, generator=generator).to(device=device, dtype=dtype)
    for codec in dict.fromkeys(codecs):
        # one row, one table, and a list of several take kernels of their own
        for tensors in ([repeated], [repeated, distinct, distinct[:1]]):
            used = [codec] * len(tensors)
            batch = encode_batch(tensors, used).trimmed()
            decode_batch(batch, [TensorInfo.of(x) for x in tensors], used)
