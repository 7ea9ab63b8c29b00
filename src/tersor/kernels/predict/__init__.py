"""Integer Lorenzo prediction: the difference to the already known neighbours, exact mod 2**32."""

from tersor.kernels.runtime.op import Op

lorenzo_residual = Op(
    "lorenzo_residual",
    {
        "reference": "tersor.kernels.predict.reference:lorenzo_residual",
        "cpu": "tersor.kernels.predict.cpu:lorenzo_residual",
        "gpu": "tersor.kernels.predict.gpu:lorenzo_residual",
    },
)
lorenzo_restore = Op(
    "lorenzo_restore",
    {
        "reference": "tersor.kernels.predict.reference:lorenzo_restore",
        "cpu": "tersor.kernels.predict.cpu:lorenzo_restore",
        # torch's running sums are parallel scans: one launch per axis, and no wait
        "gpu": "tersor.kernels.predict.reference:lorenzo_restore",
    },
)

__all__ = ["lorenzo_residual", "lorenzo_restore"]
