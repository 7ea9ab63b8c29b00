"""Whole-row de-duplication: each distinct row once, and an index to put them back."""

from tersor.kernels.runtime.op import Op

unique_rows = Op.of(__name__, "unique_rows", reference="reference", cpu="cpu", gpu="gpu.numbers")

__all__ = ["unique_rows"]
