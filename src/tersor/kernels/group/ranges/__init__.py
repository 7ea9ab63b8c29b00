"""Quantization of groups between their smallest and largest value to 2 bits per value. Nothing waits for a GPU."""

from tersor.kernels.runtime.op import Op

_BACKENDS = {"reference": "reference", "cpu": "cpu", "gpu": "gpu"}
range_quantize = Op.of(__name__, "range_quantize", **_BACKENDS)
range_dequantize = Op.of(__name__, "range_dequantize", **_BACKENDS)

__all__ = ["range_dequantize", "range_quantize"]
