"""Quantization to integer codes on a uniform grid, with outliers for values that do not fit it.

Read ``grid.py`` first, then ``reference.py``, then a backend.
"""

from tersor.kernels.quantize.grid import Grid
from tersor.kernels.runtime.op import Op

finite_range = Op.of(
    __name__, "finite_range", reference="reference", cpu="cpu.finite_range", gpu="gpu.finite_range"
)
bounded_quantize = Op.of(
    __name__, "bounded_quantize", reference="reference", cpu="cpu.quantize", gpu="gpu.quantize"
)
bounded_dequantize = Op.of(
    __name__, "bounded_dequantize", reference="reference", cpu="cpu.quantize", gpu="gpu.quantize"
)

__all__ = ["Grid", "bounded_dequantize", "bounded_quantize", "finite_range"]
