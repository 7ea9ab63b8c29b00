"""Group-wise absmax quantization to 8 or 4 bits: a fixed size, no error bound."""

from tersor.kernels.runtime.op import Op

group_quantize = Op.of(
    __name__, "group_quantize", reference="reference", cpu="cpu.quantize", gpu="gpu.quantize"
)
group_dequantize = Op.of(
    __name__, "group_dequantize", reference="reference", cpu="cpu.quantize", gpu="gpu.quantize"
)
group_transform_quantize = Op.of(
    __name__,
    "group_transform_quantize",
    composed="compose",
    cpu="cpu.quantize",
    gpu="gpu.quantize",
)
group_dequantize_transform = Op.of(
    __name__,
    "group_dequantize_transform",
    composed="compose",
    cpu="cpu.quantize",
    gpu="gpu.quantize",
)
group_dequantize_sum_quantize = Op.of(
    __name__,
    "group_dequantize_sum_quantize",
    composed="compose",
    gpu="gpu.quantize",
)

__all__ = [
    "group_dequantize",
    "group_dequantize_sum_quantize",
    "group_dequantize_transform",
    "group_quantize",
    "group_transform_quantize",
]
