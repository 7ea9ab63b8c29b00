"""Whole payloads of a list of tensors, without waiting: what codecs are made of.

On a CPU a list shares one call of a kernel where its tensors are small; on a GPU it takes a few launches,
and the sizes stay there.
"""

from tersor.kernels.runtime.op import Op

pack_slices = Op(
    "pack_slices",
    {
        "reference": "tersor.kernels.batch.reference:pack_slices",
        "cpu": "tersor.kernels.batch.cpu.flat:pack_slices",
    },
)
unpack_slices = Op(
    "unpack_slices",
    {
        "reference": "tersor.kernels.batch.reference:unpack_slices",
        "cpu": "tersor.kernels.batch.cpu.flat:unpack_slices",
    },
)
encode_row_slices = Op(
    "encode_row_slices",
    {
        "reference": "tersor.kernels.batch.reference:encode_row_slices",
        "cpu": "tersor.kernels.batch.cpu.rows:encode_row_slices",
        "gpu": "tersor.kernels.batch.compose:encode_row_slices",
    },
)
decode_row_slices = Op(
    "decode_row_slices",
    {
        "reference": "tersor.kernels.batch.reference:decode_row_slices",
        "cpu": "tersor.kernels.batch.cpu.rows:decode_row_slices",
        "gpu": "tersor.kernels.batch.compose:decode_row_slices",
    },
)

__all__ = ["decode_row_slices", "encode_row_slices", "pack_slices", "unpack_slices"]
