"""A module that looks like ``nvidia.nvcomp`` to our adapter and compresses with zlib, on the CPU."""

from __future__ import annotations

import zlib

import numpy as np

__version__ = "6.0.0"


class BatchArray:
    def __init__(self, parts):
        self.parts = parts

    @property
    def buffer_sizes(self):
        return [len(part) for part in self.parts]


def as_arrays(sources, cuda_stream=0):
    assert cuda_stream != 0, "0 may be taken for no stream"
    return BatchArray(sources)


def set_device_allocator(allocator=None):
    pass


class Codec:
    def __init__(self, *, algorithm, cuda_stream, data_type="|u1"):
        if algorithm == "Snappy":
            raise ValueError("planted: cannot do this\nsecond line")
        self.dtype = np.dtype(data_type)

    def compression_config(self, sizes):
        return ("encode", tuple(sizes))

    def decompression_config(self, config):
        return ("decode", config[1])

    def encode(self, arrays, compression_config):
        assert compression_config == ("encode", tuple(x.nbytes for x in arrays.parts))
        return BatchArray([zlib.compress(x.numpy().tobytes(), 1) for x in arrays.parts])

    def decode(self, batch, out, decompression_config):
        assert decompression_config == ("decode", tuple(x.nbytes for x in out.parts))
        for part, target in zip(batch.parts, out.parts, strict=True):
            target.numpy()[:] = np.frombuffer(zlib.decompress(part), dtype=target.numpy().dtype)
