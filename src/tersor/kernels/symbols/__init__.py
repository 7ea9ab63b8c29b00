"""Codes as symbols of a small alphabet, with an escape for those that do not fit."""

from tersor.kernels.op import Op
from tersor.kernels.symbols.alphabet import Symbols

_HERE = "tersor.kernels.symbols"

map_symbols = Op(
    "map_symbols",
    {
        "reference": f"{_HERE}.reference:map_symbols",
        "cpu": f"{_HERE}.cpu:map_symbols",
        "gpu": f"{_HERE}.gpu:map_symbols",
    },
)
unmap_symbols = Op(
    "unmap_symbols",
    {
        "reference": f"{_HERE}.reference:unmap_symbols",
        "cpu": f"{_HERE}.cpu:unmap_symbols",
        "gpu": f"{_HERE}.gpu:unmap_symbols",
    },
)
quantize_symbols = Op(
    "quantize_symbols",
    {
        "reference": f"{_HERE}.fused:quantize_symbols",
        "cpu": f"{_HERE}.cpu:quantize_symbols",
        "gpu": f"{_HERE}.gpu:quantize_symbols",
    },
)
dequantize_symbols = Op(
    "dequantize_symbols",
    {
        "reference": f"{_HERE}.fused:dequantize_symbols",
        "cpu": f"{_HERE}.cpu:dequantize_symbols",
        "gpu": f"{_HERE}.gpu:dequantize_symbols",
    },
)

__all__ = ["Symbols", "dequantize_symbols", "map_symbols", "quantize_symbols", "unmap_symbols"]
