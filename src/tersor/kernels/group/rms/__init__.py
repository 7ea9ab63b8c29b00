"""Quantization of groups scaled by their root mean square; an entropy coder compresses the codes.

On a GPU the kernels of ``batch`` take whole lists, and the reference handles what they refuse.
"""

from tersor.kernels.runtime.op import Op

rms_quantize = Op.of(__name__, "rms_quantize", reference="reference", cpu="cpu", gpu="reference")
rms_dequantize = Op.of(
    __name__, "rms_dequantize", reference="reference", cpu="cpu", gpu="reference"
)

__all__ = ["rms_dequantize", "rms_quantize"]
