"""Contiguous bit fields: of one width for a whole list, and inside the tiles of ``blocks``."""

from tersor.kernels.runtime.op import Op

pack_fields = Op(
    "pack_fields",
    {
        "reference": "tersor.kernels.pack.fields.reference:pack_fields",
        "cpu": "tersor.kernels.pack.fields.cpu:pack_fields",
        "gpu": "tersor.kernels.pack.fields.gpu:pack_fields",
    },
)
unpack_fields = Op(
    "unpack_fields",
    {
        "reference": "tersor.kernels.pack.fields.reference:unpack_fields",
        "cpu": "tersor.kernels.pack.fields.cpu:unpack_fields",
        "gpu": "tersor.kernels.pack.fields.gpu:unpack_fields",
    },
)

__all__ = ["pack_fields", "unpack_fields"]
