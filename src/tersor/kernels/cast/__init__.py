"""Casts to narrower floats.

torch's own casts are compiled, vectorised and round to nearest on a CPU, so the reference is also the
CPU implementation.
"""

from tersor.kernels.op import Op

_REFERENCE = "tersor.kernels.cast.reference"
_GPU = "tersor.kernels.cast.gpu"

scaled_cast = Op(
    "scaled_cast",
    {
        "reference": f"{_REFERENCE}:scaled_cast",
        "cpu": f"{_REFERENCE}:scaled_cast",
        "gpu": f"{_GPU}:scaled_cast",
    },
)
scaled_uncast = Op(
    "scaled_uncast",
    {
        "reference": f"{_REFERENCE}:scaled_uncast",
        "cpu": f"{_REFERENCE}:scaled_uncast",
        "gpu": f"{_GPU}:scaled_uncast",
    },
)

__all__ = ["scaled_cast", "scaled_uncast"]
