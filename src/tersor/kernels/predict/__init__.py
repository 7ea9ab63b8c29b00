"""Integer Lorenzo prediction: the difference from neighbours that are already known, exact mod 2**32."""

from tersor.kernels.runtime.op import Op

lorenzo_residual = Op.of(__name__, "lorenzo_residual", reference="reference", cpu="cpu", gpu="gpu")
# torch's cumulative sums are parallel scans: one launch per axis, without waiting
lorenzo_restore = Op.of(
    __name__, "lorenzo_restore", reference="reference", cpu="cpu", gpu="reference"
)

__all__ = ["lorenzo_residual", "lorenzo_restore"]
