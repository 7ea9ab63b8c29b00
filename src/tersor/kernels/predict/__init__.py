"""Integer Lorenzo prediction: the difference to the already known neighbours, exact mod 2**32."""

from tersor.kernels.runtime.op import Op

lorenzo_residual = Op.of(__name__, "lorenzo_residual", reference="reference", cpu="cpu", gpu="gpu")
# torch's running sums are parallel scans: one launch per axis, and no wait
lorenzo_restore = Op.of(
    __name__, "lorenzo_restore", reference="reference", cpu="cpu", gpu="reference"
)

__all__ = ["lorenzo_residual", "lorenzo_restore"]
