"""Interleaved rANS: 32 lanes share one stream of 16-bit words, in independent blocks."""

from tersor.kernels.op import Op

_HERE = "tersor.kernels.rans"

rans_encode = Op(
    "rans_encode",
    {
        "reference": f"{_HERE}.reference:rans_encode",
        "cpu": f"{_HERE}.cpu:rans_encode",
        "gpu": f"{_HERE}.gpu:rans_encode",
    },
)
rans_decode = Op(
    "rans_decode",
    {
        "reference": f"{_HERE}.reference:rans_decode",
        "cpu": f"{_HERE}.cpu:rans_decode",
        "gpu": f"{_HERE}.gpu:rans_decode",
    },
)
rans_decode_dequantize = Op(
    "rans_decode_dequantize",
    {
        "reference": f"{_HERE}.reference:rans_decode_dequantize",
        "cpu": f"{_HERE}.fused:rans_decode_dequantize",
        "gpu": f"{_HERE}.gpu:rans_decode_dequantize",
    },
)

__all__ = ["rans_decode", "rans_decode_dequantize", "rans_encode"]
