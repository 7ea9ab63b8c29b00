"""Contiguous bit fields: lists of one width, and the tiles of ``blocks``."""

from tersor.kernels.runtime.op import Op

pack_fields = Op.of(__name__, "pack_fields", reference="reference", cpu="cpu", gpu="gpu")
unpack_fields = Op.of(__name__, "unpack_fields", reference="reference", cpu="cpu", gpu="gpu")

__all__ = ["pack_fields", "unpack_fields"]
