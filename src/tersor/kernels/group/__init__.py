"""Group-wise absmax quantization to 8 or 4 bits: a fixed size, no error bound."""

from tersor.kernels.runtime.op import Op

group_quantize = Op(
    "group_quantize",
    {
        "reference": "tersor.kernels.group.reference:group_quantize",
        "cpu": "tersor.kernels.group.cpu.quantize:group_quantize",
        "gpu": "tersor.kernels.group.gpu.quantize:group_quantize",
    },
)
group_dequantize = Op(
    "group_dequantize",
    {
        "reference": "tersor.kernels.group.reference:group_dequantize",
        "cpu": "tersor.kernels.group.cpu.quantize:group_dequantize",
        "gpu": "tersor.kernels.group.gpu.quantize:group_dequantize",
    },
)
group_transform_quantize = Op(
    "group_transform_quantize",
    {
        "reference": "tersor.kernels.group.compose:group_transform_quantize",
        "cpu": "tersor.kernels.group.cpu.quantize:group_transform_quantize",
        "gpu": "tersor.kernels.group.gpu.quantize:group_transform_quantize",
    },
)
group_dequantize_transform = Op(
    "group_dequantize_transform",
    {
        "reference": "tersor.kernels.group.compose:group_dequantize_transform",
        "cpu": "tersor.kernels.group.cpu.quantize:group_dequantize_transform",
        "gpu": "tersor.kernels.group.gpu.quantize:group_dequantize_transform",
    },
)
group_dequantize_sum_quantize = Op(
    "group_dequantize_sum_quantize",
    {
        "reference": "tersor.kernels.group.compose:group_dequantize_sum_quantize",
        "cpu": "tersor.kernels.group.compose:group_dequantize_sum_quantize",
        "gpu": "tersor.kernels.group.gpu.quantize:group_dequantize_sum_quantize",
    },
)

__all__ = [
    "group_dequantize",
    "group_dequantize_sum_quantize",
    "group_dequantize_transform",
    "group_quantize",
    "group_transform_quantize",
]
