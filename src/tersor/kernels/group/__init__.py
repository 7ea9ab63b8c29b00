"""Group-wise absmax quantization to 8 or 4 bits: a fixed size, no error bound."""

from tersor.kernels.op import Op

_HERE = "tersor.kernels.group"

group_quantize = Op(
    "group_quantize",
    {"reference": f"{_HERE}.reference:group_quantize", "cpu": f"{_HERE}.cpu:group_quantize"},
)
group_dequantize = Op(
    "group_dequantize",
    {"reference": f"{_HERE}.reference:group_dequantize", "cpu": f"{_HERE}.cpu:group_dequantize"},
)

__all__ = ["group_dequantize", "group_quantize"]
