"""De-duplication of whole rows: each distinct row once, and an index that restores all rows."""

from tersor.kernels.runtime.op import Op

unique_rows = Op.of(__name__, "unique_rows", reference="reference", cpu="cpu", gpu="gpu.numbers")

__all__ = ["unique_rows"]
