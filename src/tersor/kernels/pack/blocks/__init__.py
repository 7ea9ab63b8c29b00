"""Fixed-length packing of integer codes, block by block."""

from tersor.kernels.runtime.op import Op

pack = Op.of(__name__, "pack", reference="reference", cpu="cpu", gpu="gpu.pack")
unpack = Op.of(__name__, "unpack", reference="reference", cpu="cpu", gpu="gpu.pack")
quantize_pack = Op.of(__name__, "quantize_pack", composed="compose", cpu="cpu")
unpack_dequantize = Op.of(__name__, "unpack_dequantize", composed="compose", cpu="cpu")

__all__ = ["pack", "quantize_pack", "unpack", "unpack_dequantize"]
