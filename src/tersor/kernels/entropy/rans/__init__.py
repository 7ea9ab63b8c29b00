"""Interleaved rANS: 32 lanes share one stream of 16-bit words, in independent blocks."""

from tersor.kernels.runtime.op import Op

rans_encode = Op.of(__name__, "rans_encode", reference="reference", cpu="cpu", gpu="gpu.one_stream")
rans_decode = Op.of(__name__, "rans_decode", reference="reference", cpu="cpu", gpu="gpu.one_stream")
rans_decode_dequantize = Op.of(
    __name__, "rans_decode_dequantize", composed="compose", gpu="gpu.one_stream"
)

__all__ = ["rans_decode", "rans_decode_dequantize", "rans_encode"]
