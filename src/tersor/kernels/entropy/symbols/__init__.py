"""Mapping codes to symbols of a small alphabet, with an escape for codes outside it."""

from tersor.kernels.entropy.symbols.alphabet import Symbols
from tersor.kernels.runtime.op import Op

map_symbols = Op.of(__name__, "map_symbols", reference="reference", cpu="cpu", gpu="gpu.symbols")
unmap_symbols = Op.of(
    __name__, "unmap_symbols", reference="reference", cpu="cpu", gpu="gpu.symbols"
)
quantize_symbols = Op.of(
    __name__, "quantize_symbols", composed="compose", cpu="cpu", gpu="gpu.symbols"
)
dequantize_symbols = Op.of(
    __name__, "dequantize_symbols", composed="compose", cpu="cpu", gpu="gpu.symbols"
)

__all__ = ["Symbols", "dequantize_symbols", "map_symbols", "quantize_symbols", "unmap_symbols"]
