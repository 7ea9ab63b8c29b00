"""Groups between their smallest and their largest value, in two bits per value.

Plain torch on every device, which does not wait for one.
"""

from tersor.kernels.runtime.op import Op

_ANYWHERE = {"reference": "reference", "cpu": "reference", "gpu": "reference"}
range_quantize = Op.of(__name__, "range_quantize", **_ANYWHERE)
range_dequantize = Op.of(__name__, "range_dequantize", **_ANYWHERE)

__all__ = ["range_dequantize", "range_quantize"]
