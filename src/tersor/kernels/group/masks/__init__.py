"""Quantization of groups to a few bits per value with exact zeros and signs. Nothing waits for a GPU."""

from tersor.kernels.runtime.op import Op

_BACKENDS = {"reference": "reference", "cpu": "cpu", "gpu": "gpu"}
mask_quantize = Op.of(__name__, "mask_quantize", **_BACKENDS)
mask_dequantize = Op.of(__name__, "mask_dequantize", **_BACKENDS)

__all__ = ["mask_dequantize", "mask_quantize"]
