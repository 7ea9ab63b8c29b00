"""Lists of tensors, each quantized on its own grid and packed."""

from tersor.kernels.op import Op

_HERE = "tersor.kernels.slices"

pack_slices = Op(
    "pack_slices",
    {
        "reference": f"{_HERE}.reference:pack_slices",
        "cpu": f"{_HERE}.cpu:pack_slices",
    },
)
unpack_slices = Op(
    "unpack_slices",
    {
        "reference": f"{_HERE}.reference:unpack_slices",
        "cpu": f"{_HERE}.cpu:unpack_slices",
    },
)

__all__ = ["pack_slices", "unpack_slices"]
