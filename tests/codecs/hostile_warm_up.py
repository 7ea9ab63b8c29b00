"""Encode and decode with every variant and dtype, so that all kernels are on disk, compiled."""

from __future__ import annotations

import torch

from tersor.kernels.runtime import threads
from tersor.types import FLOAT_DTYPES, Bound
from tests.codecs.hostile import originals
from tests.codecs.variants import PAYLOADS, build

if __name__ == "__main__":
    torch.set_num_threads(2)
    threads._MIN_NBYTES_PER_THREAD = 1
    for name in PAYLOADS:
        codec = build(name, Bound.absolute(0.01))
        for dtype in FLOAT_DTYPES:
            for _, x in originals(codec, dtype):
                codec.unpack(codec.pack(x))
