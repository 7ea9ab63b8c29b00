"""De-duplicated rows: distinct rows entropy-coded, and an index that puts them back."""

from tersor.kernels.op import Op

_HERE = "tersor.kernels.rows"

encode_rows = Op(
    "encode_rows",
    {
        "reference": f"{_HERE}.reference:encode_rows",
        "cpu": f"{_HERE}.composition:encode_rows",
        "gpu": f"{_HERE}.gpu:encode_rows",
    },
)
decode_rows = Op(
    "decode_rows",
    {
        "reference": f"{_HERE}.reference:decode_rows",
        "cpu": f"{_HERE}.composition:decode_rows",
        "gpu": f"{_HERE}.gpu:decode_rows",
    },
)
encode_row_slices = Op(
    "encode_row_slices",
    {
        "reference": f"{_HERE}.reference:encode_row_slices",
        "cpu": f"{_HERE}.cpu:encode_row_slices",
        "gpu": f"{_HERE}.gpu:encode_row_slices",
    },
)
decode_row_slices = Op(
    "decode_row_slices",
    {
        "reference": f"{_HERE}.reference:decode_row_slices",
        "cpu": f"{_HERE}.cpu:decode_row_slices",
        "gpu": f"{_HERE}.gpu:decode_row_slices",
    },
)

__all__ = ["decode_row_slices", "decode_rows", "encode_row_slices", "encode_rows"]
