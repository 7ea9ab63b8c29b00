"""Whole-row de-duplication: each distinct row once, and an index to put them back."""

from tersor.kernels.runtime.op import Op

unique_rows = Op(
    "unique_rows",
    {
        "reference": "tersor.kernels.rows.dedup.reference:unique_rows",
        "cpu": "tersor.kernels.rows.dedup.cpu:unique_rows",
        "gpu": "tersor.kernels.rows.dedup.gpu.numbers:unique_rows",
    },
)

__all__ = ["unique_rows"]
