"""Quantization, differences of neighbouring codes and packing in one operation."""

from tersor.kernels.runtime.op import Op

delta_pack = Op.of(__name__, "delta_pack", composed="compose", cpu="cpu")
delta_unpack = Op.of(__name__, "delta_unpack", composed="compose", cpu="cpu")

__all__ = ["delta_pack", "delta_unpack"]
