"""Fixed-length packing of integer codes, block by block."""

from tersor.kernels.runtime.op import Op

pack = Op(
    "pack",
    {
        "reference": "tersor.kernels.pack.blocks.reference:pack",
        "cpu": "tersor.kernels.pack.blocks.cpu:pack",
        "gpu": "tersor.kernels.pack.blocks.gpu.pack:pack",
    },
)
unpack = Op(
    "unpack",
    {
        "reference": "tersor.kernels.pack.blocks.reference:unpack",
        "cpu": "tersor.kernels.pack.blocks.cpu:unpack",
        "gpu": "tersor.kernels.pack.blocks.gpu.pack:unpack",
    },
)
quantize_pack = Op(
    "quantize_pack",
    {
        "reference": "tersor.kernels.pack.blocks.compose:quantize_pack",
        "cpu": "tersor.kernels.pack.blocks.cpu:quantize_pack",
        "gpu": "tersor.kernels.pack.blocks.gpu.pack:quantize_pack",
    },
)
unpack_dequantize = Op(
    "unpack_dequantize",
    {
        "reference": "tersor.kernels.pack.blocks.compose:unpack_dequantize",
        "cpu": "tersor.kernels.pack.blocks.cpu:unpack_dequantize",
        "gpu": "tersor.kernels.pack.blocks.gpu.pack:unpack_dequantize",
    },
)

__all__ = ["pack", "quantize_pack", "unpack", "unpack_dequantize"]
