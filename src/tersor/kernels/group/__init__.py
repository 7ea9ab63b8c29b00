"""Group-wise absmax quantization to 8 or 4 bits: a fixed size, no error bound."""

from tersor.kernels.runtime.op import Op

_BACKENDS = {"reference": "reference", "cpu": "cpu.quantize", "gpu": "gpu.quantize"}
group_quantize = Op.of(__name__, "group_quantize", **_BACKENDS)
group_dequantize = Op.of(__name__, "group_dequantize", **_BACKENDS)
group_dequantize_sum_quantize = Op.of(
    __name__,
    "group_dequantize_sum_quantize",
    composed="compose",
    cpu="cpu.quantize",
    gpu="gpu.quantize",
)

__all__ = ["group_dequantize", "group_dequantize_sum_quantize", "group_quantize"]
