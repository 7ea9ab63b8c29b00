"""Quantization, differences of neighbouring codes and packing in one operation."""

from tersor.kernels.runtime.op import Op

delta_pack = Op(
    "delta_pack",
    {
        "reference": "tersor.kernels.pack.delta.compose:delta_pack",
        "cpu": "tersor.kernels.pack.delta.cpu:delta_pack",
        "gpu": "tersor.kernels.pack.delta.compose:delta_pack",
    },
)
delta_unpack = Op(
    "delta_unpack",
    {
        "reference": "tersor.kernels.pack.delta.compose:delta_unpack",
        "cpu": "tersor.kernels.pack.delta.cpu:delta_unpack",
        "gpu": "tersor.kernels.pack.delta.compose:delta_unpack",
    },
)

__all__ = ["delta_pack", "delta_unpack"]
