"""Bounded quantization: integer codes on a uniform grid, and the values that cannot use it."""

from tersor.kernels.op import Op
from tersor.kernels.quantize.grid import Grid

_HERE = "tersor.kernels.quantize"

bounded_quantize = Op(
    "bounded_quantize",
    {
        "reference": f"{_HERE}.reference:bounded_quantize",
        "cpu": f"{_HERE}.cpu:bounded_quantize",
        "gpu": f"{_HERE}.gpu:bounded_quantize",
    },
)
bounded_dequantize = Op(
    "bounded_dequantize",
    {
        "reference": f"{_HERE}.reference:bounded_dequantize",
        "cpu": f"{_HERE}.cpu:bounded_dequantize",
        "gpu": f"{_HERE}.gpu:bounded_dequantize",
    },
)

__all__ = ["Grid", "bounded_dequantize", "bounded_quantize"]
