"""Codes as symbols of a small alphabet, with an escape for those that do not fit."""

from tersor.kernels.entropy.symbols.alphabet import Symbols
from tersor.kernels.runtime.op import Op

map_symbols = Op(
    "map_symbols",
    {
        "reference": "tersor.kernels.entropy.symbols.reference:map_symbols",
        "cpu": "tersor.kernels.entropy.symbols.cpu:map_symbols",
        "gpu": "tersor.kernels.entropy.symbols.gpu.symbols:map_symbols",
    },
)
unmap_symbols = Op(
    "unmap_symbols",
    {
        "reference": "tersor.kernels.entropy.symbols.reference:unmap_symbols",
        "cpu": "tersor.kernels.entropy.symbols.cpu:unmap_symbols",
        "gpu": "tersor.kernels.entropy.symbols.gpu.symbols:unmap_symbols",
    },
)
quantize_symbols = Op(
    "quantize_symbols",
    {
        "reference": "tersor.kernels.entropy.symbols.compose:quantize_symbols",
        "cpu": "tersor.kernels.entropy.symbols.cpu:quantize_symbols",
        "gpu": "tersor.kernels.entropy.symbols.gpu.symbols:quantize_symbols",
    },
)
dequantize_symbols = Op(
    "dequantize_symbols",
    {
        "reference": "tersor.kernels.entropy.symbols.compose:dequantize_symbols",
        "cpu": "tersor.kernels.entropy.symbols.cpu:dequantize_symbols",
        "gpu": "tersor.kernels.entropy.symbols.gpu.symbols:dequantize_symbols",
    },
)

__all__ = ["Symbols", "dequantize_symbols", "map_symbols", "quantize_symbols", "unmap_symbols"]
