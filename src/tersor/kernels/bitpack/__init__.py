"""Fixed-length packing of integer codes, block by block."""

from tersor.kernels.op import Op

_HERE = "tersor.kernels.bitpack"

pack = Op(
    "pack",
    {
        "reference": f"{_HERE}.reference:pack",
        "cpu": f"{_HERE}.cpu:pack",
        "gpu": f"{_HERE}.gpu:pack",
    },
)
unpack = Op(
    "unpack",
    {
        "reference": f"{_HERE}.reference:unpack",
        "cpu": f"{_HERE}.cpu:unpack",
        "gpu": f"{_HERE}.gpu:unpack",
    },
)
quantize_pack = Op(
    "quantize_pack",
    {
        "reference": f"{_HERE}.fused:quantize_pack",
        "cpu": f"{_HERE}.cpu:quantize_pack",
        "gpu": f"{_HERE}.gpu:quantize_pack",
    },
)
unpack_dequantize = Op(
    "unpack_dequantize",
    {
        "reference": f"{_HERE}.fused:unpack_dequantize",
        "cpu": f"{_HERE}.cpu:unpack_dequantize",
        "gpu": f"{_HERE}.gpu:unpack_dequantize",
    },
)

__all__ = ["pack", "quantize_pack", "unpack", "unpack_dequantize"]
