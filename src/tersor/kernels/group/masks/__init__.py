"""Groups in few bits per value, with exact zeros and signs.

Plain torch on every device, which does not wait for one.
"""

from tersor.kernels.runtime.op import Op

_ANYWHERE = {"reference": "reference", "cpu": "reference", "gpu": "reference"}
mask_quantize = Op.of(__name__, "mask_quantize", **_ANYWHERE)
mask_dequantize = Op.of(__name__, "mask_dequantize", **_ANYWHERE)

__all__ = ["mask_dequantize", "mask_quantize"]
