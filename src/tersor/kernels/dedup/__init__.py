"""Whole-row de-duplication: each distinct row once, and an index to put them back."""

from tersor.kernels.op import Op

_HERE = "tersor.kernels.dedup"

unique_rows = Op(
    "unique_rows",
    {"reference": f"{_HERE}.reference:unique_rows", "cpu": f"{_HERE}.cpu:unique_rows"},
)
pack_index = Op(
    "pack_index",
    {"reference": f"{_HERE}.reference:pack_index", "cpu": f"{_HERE}.cpu:pack_index"},
)
unpack_index = Op(
    "unpack_index",
    {"reference": f"{_HERE}.reference:unpack_index", "cpu": f"{_HERE}.cpu:unpack_index"},
)

__all__ = ["pack_index", "unique_rows", "unpack_index"]
