"""Integer Lorenzo prediction: the difference to the already known neighbours, exact mod 2**32."""

from tersor.kernels.op import Op

_HERE = "tersor.kernels.lorenzo"

lorenzo_residual = Op(
    "lorenzo_residual",
    {
        "reference": f"{_HERE}.reference:lorenzo_residual",
        "cpu": f"{_HERE}.cpu:lorenzo_residual",
        "gpu": f"{_HERE}.gpu:lorenzo_residual",
    },
)
lorenzo_restore = Op(
    "lorenzo_restore",
    {
        "reference": f"{_HERE}.reference:lorenzo_restore",
        "cpu": f"{_HERE}.cpu:lorenzo_restore",
        # torch's running sums are parallel scans: one launch per axis, and no wait
        "gpu": f"{_HERE}.reference:lorenzo_restore",
    },
)

__all__ = ["lorenzo_residual", "lorenzo_restore"]
