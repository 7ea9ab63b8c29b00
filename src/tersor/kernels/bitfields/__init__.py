"""Contiguous bit fields: of one width for a whole list, and inside the tiles of ``bitpack``."""

from tersor.kernels.op import Op

_HERE = "tersor.kernels.bitfields"

pack_fields = Op(
    "pack_fields",
    {
        "reference": f"{_HERE}.reference:pack_fields",
        "cpu": f"{_HERE}.cpu:pack_fields",
        "gpu": f"{_HERE}.gpu:pack_fields",
    },
)
unpack_fields = Op(
    "unpack_fields",
    {
        "reference": f"{_HERE}.reference:unpack_fields",
        "cpu": f"{_HERE}.cpu:unpack_fields",
        "gpu": f"{_HERE}.gpu:unpack_fields",
    },
)

__all__ = ["pack_fields", "unpack_fields"]
