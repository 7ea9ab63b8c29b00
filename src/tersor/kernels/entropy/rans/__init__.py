"""Interleaved rANS: 32 lanes share one stream of 16-bit words, in independent blocks."""

from tersor.kernels.runtime.op import Op

rans_encode = Op(
    "rans_encode",
    {
        "reference": "tersor.kernels.entropy.rans.reference:rans_encode",
        "cpu": "tersor.kernels.entropy.rans.cpu:rans_encode",
        "gpu": "tersor.kernels.entropy.rans.gpu.one_stream:rans_encode",
    },
)
rans_decode = Op(
    "rans_decode",
    {
        "reference": "tersor.kernels.entropy.rans.reference:rans_decode",
        "cpu": "tersor.kernels.entropy.rans.cpu:rans_decode",
        "gpu": "tersor.kernels.entropy.rans.gpu.one_stream:rans_decode",
    },
)
rans_decode_dequantize = Op(
    "rans_decode_dequantize",
    {
        "reference": "tersor.kernels.entropy.rans.reference:rans_decode_dequantize",
        "cpu": "tersor.kernels.entropy.rans.compose:rans_decode_dequantize",
        "gpu": "tersor.kernels.entropy.rans.gpu.one_stream:rans_decode_dequantize",
    },
)

__all__ = ["rans_decode", "rans_decode_dequantize", "rans_encode"]
