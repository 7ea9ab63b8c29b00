"""Casts to narrower floats.

torch's own casts are compiled, vectorised and round to nearest on a CPU, so the reference is also the
CPU implementation.
"""

from tersor.kernels.runtime.op import Op

scaled_cast = Op.of(__name__, "scaled_cast", reference="reference", cpu="reference", gpu="gpu")
scaled_uncast = Op.of(__name__, "scaled_uncast", reference="reference", cpu="reference", gpu="gpu")

__all__ = ["scaled_cast", "scaled_uncast"]
