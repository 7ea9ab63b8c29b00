"""Quantization, differences of neighbouring codes and packing in one operation."""

from tersor.kernels.op import Op

_HERE = "tersor.kernels.delta"

delta_pack = Op(
    "delta_pack",
    {
        "reference": f"{_HERE}.composition:delta_pack",
        "cpu": f"{_HERE}.cpu:delta_pack",
        "gpu": f"{_HERE}.composition:delta_pack",
    },
)
delta_unpack = Op(
    "delta_unpack",
    {
        "reference": f"{_HERE}.composition:delta_unpack",
        "cpu": f"{_HERE}.cpu:delta_unpack",
        "gpu": f"{_HERE}.composition:delta_unpack",
    },
)

__all__ = ["delta_pack", "delta_unpack"]
