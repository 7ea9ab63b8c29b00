"""Hadamard transform of order 32: spreads a large value over its 32 neighbours."""

from tersor.kernels.runtime.op import Op

hadamard = Op.of(__name__, "hadamard", reference="reference", cpu="cpu", gpu="gpu")

__all__ = ["hadamard"]
