"""De-duplicated rows: distinct rows entropy-coded, and an index that puts them back."""

from tersor.kernels.op import Op

_HERE = "tersor.kernels.rows"

encode_rows = Op(
    "encode_rows",
    {"reference": f"{_HERE}.reference:encode_rows", "cpu": f"{_HERE}.cpu:encode_rows"},
)
decode_rows = Op(
    "decode_rows",
    {"reference": f"{_HERE}.reference:decode_rows", "cpu": f"{_HERE}.cpu:decode_rows"},
)

__all__ = ["decode_rows", "encode_rows"]
