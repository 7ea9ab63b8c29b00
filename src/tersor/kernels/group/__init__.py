"""Group-wise absmax quantization to 8 or 4 bits: a fixed size, no error bound."""

from tersor.kernels.op import Op

_HERE = "tersor.kernels.group"

group_quantize = Op(
    "group_quantize",
    {
        "reference": f"{_HERE}.reference:group_quantize",
        "cpu": f"{_HERE}.cpu:group_quantize",
        "gpu": f"{_HERE}.gpu:group_quantize",
    },
)
group_dequantize = Op(
    "group_dequantize",
    {
        "reference": f"{_HERE}.reference:group_dequantize",
        "cpu": f"{_HERE}.cpu:group_dequantize",
        "gpu": f"{_HERE}.gpu:group_dequantize",
    },
)
group_transform_quantize = Op(
    "group_transform_quantize",
    {
        "reference": f"{_HERE}.fused:group_transform_quantize",
        "cpu": f"{_HERE}.cpu:group_transform_quantize",
        "gpu": f"{_HERE}.gpu:group_transform_quantize",
    },
)
group_dequantize_transform = Op(
    "group_dequantize_transform",
    {
        "reference": f"{_HERE}.fused:group_dequantize_transform",
        "cpu": f"{_HERE}.cpu:group_dequantize_transform",
        "gpu": f"{_HERE}.gpu:group_dequantize_transform",
    },
)
group_dequantize_sum_quantize = Op(
    "group_dequantize_sum_quantize",
    {
        "reference": f"{_HERE}.fused:group_dequantize_sum_quantize",
        "cpu": f"{_HERE}.fused:group_dequantize_sum_quantize",
        "gpu": f"{_HERE}.gpu:group_dequantize_sum_quantize",
    },
)

__all__ = [
    "group_dequantize",
    "group_dequantize_sum_quantize",
    "group_dequantize_transform",
    "group_quantize",
    "group_transform_quantize",
]
