"""De-duplicated rows: distinct rows entropy-coded, and an index that puts them back."""

from tersor.kernels.runtime.op import Op

encode_rows = Op(
    "encode_rows",
    {
        "composed": "tersor.kernels.rows.compose:encode_rows",
        "gpu": "tersor.kernels.rows.gpu.one_matrix:encode_rows",
    },
)
decode_rows = Op(
    "decode_rows",
    {
        "composed": "tersor.kernels.rows.compose:decode_rows",
        "gpu": "tersor.kernels.rows.gpu.one_matrix:decode_rows",
    },
)
__all__ = ["decode_rows", "encode_rows"]
