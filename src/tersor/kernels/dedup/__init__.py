"""Whole-row de-duplication: each distinct row once, and an index to put them back."""

from tersor.kernels.op import Op

_HERE = "tersor.kernels.dedup"

unique_rows = Op(
    "unique_rows",
    {
        "reference": f"{_HERE}.reference:unique_rows",
        "cpu": f"{_HERE}.cpu:unique_rows",
        "gpu": f"{_HERE}.gpu:unique_rows",
    },
)

__all__ = ["unique_rows"]
