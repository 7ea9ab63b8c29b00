"""Interleaved rANS: 32 lanes share one stream of 16-bit words, in independent blocks."""

from tersor.kernels.op import Op

_HERE = "tersor.kernels.rans"

rans_encode = Op(
    "rans_encode",
    {"reference": f"{_HERE}.reference:rans_encode", "cpu": f"{_HERE}.cpu:rans_encode"},
)
rans_decode = Op(
    "rans_decode",
    {"reference": f"{_HERE}.reference:rans_decode", "cpu": f"{_HERE}.cpu:rans_decode"},
)

__all__ = ["rans_decode", "rans_encode"]
