"""From values to integer codes on a uniform grid and back, with the values that cannot use it.

Order of reading: ``grid.py``, ``reference.py``, then a backend.
"""

from tersor.kernels.quantize.grid import Grid
from tersor.kernels.runtime.op import Op

finite_range = Op(
    "finite_range",
    {
        "reference": "tersor.kernels.quantize.reference:finite_range",
        "cpu": "tersor.kernels.quantize.cpu.finite_range:finite_range",
        "gpu": "tersor.kernels.quantize.gpu.finite_range:finite_range",
    },
)
bounded_quantize = Op(
    "bounded_quantize",
    {
        "reference": "tersor.kernels.quantize.reference:bounded_quantize",
        "cpu": "tersor.kernels.quantize.cpu.quantize:bounded_quantize",
        "gpu": "tersor.kernels.quantize.gpu.quantize:bounded_quantize",
    },
)
bounded_dequantize = Op(
    "bounded_dequantize",
    {
        "reference": "tersor.kernels.quantize.reference:bounded_dequantize",
        "cpu": "tersor.kernels.quantize.cpu.quantize:bounded_dequantize",
        "gpu": "tersor.kernels.quantize.gpu.quantize:bounded_dequantize",
    },
)

__all__ = ["Grid", "bounded_dequantize", "bounded_quantize", "finite_range"]
