"""De-duplicated rows: distinct rows entropy-coded, and an index that puts them back."""

from tersor.kernels.runtime.op import Op

encode_rows = Op(
    "encode_rows",
    {
        "reference": "tersor.kernels.rows.reference:encode_rows",
        "cpu": "tersor.kernels.rows.compose:encode_rows",
        "gpu": "tersor.kernels.rows.gpu.one_matrix:encode_rows",
    },
)
decode_rows = Op(
    "decode_rows",
    {
        "reference": "tersor.kernels.rows.reference:decode_rows",
        "cpu": "tersor.kernels.rows.compose:decode_rows",
        "gpu": "tersor.kernels.rows.gpu.one_matrix:decode_rows",
    },
)
__all__ = ["decode_rows", "encode_rows"]
