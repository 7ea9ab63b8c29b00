"""FBGEMM's row-wise quantization, which has a fixed rate and no error bound."""

from __future__ import annotations

import importlib
from typing import Any, Final

import torch

from tersor.bench.core.machine import package_version
from tersor.bench.peers.peer import SlicePeer

_DISTRIBUTIONS: Final = ("fbgemm-gpu-cpu", "fbgemm-gpu")
_MAX_ROW: Final = 1024
_ROW: Final = 128


class Fbgemm(SlicePeer):
    """Codes of 8 or 4 bits with a scale and an offset per row, as in TorchRec's quantized tables.

    The last axis is a row if it has at most 1024 values, as look-ups do. Other tensors are split into
    rows of 128.
    """

    distribution = _DISTRIBUTIONS[0]
    bounded = False
    note = "fixed rate, no bound"

    def __init__(self, bits: str) -> None:
        """Set the code width to ``"8"`` or ``"4"`` bits.

        Raises:
            ImportError: FBGEMM cannot be loaded.
        """
        # the import registers the operators
        importlib.import_module("fbgemm_gpu")
        self.bits = int(bits)
        self.name = f"fbgemm{bits}"
        found = (package_version(name) for name in _DISTRIBUTIONS)
        self.version = next((version for version in found if version), "unknown")

    def options(self) -> dict[str, Any]:
        """Return the code width, and the dtype of a row's scale and offset."""
        return {"bits": self.bits, "scale": "float32" if self.bits == 8 else "float16"}

    def encode(self, x: torch.Tensor, error_bound: float) -> torch.Tensor:
        """Quantize every row; its scale and offset follow its codes."""
        del error_bound
        operators: Any = torch.ops.fbgemm
        if self.bits == 8:
            packed: torch.Tensor = operators.FloatToFused8BitRowwiseQuantized(_rows(x))
        else:
            packed = operators.FloatToFusedNBitRowwiseQuantizedSBHalf(_rows(x), self.bits)
        return packed

    def decode(self, encoded: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Dequantize into memory that FBGEMM allocates."""
        operators: Any = torch.ops.fbgemm
        if self.bits == 8:
            values: torch.Tensor = operators.Fused8BitRowwiseQuantizedToFloat(encoded)
        else:
            values = operators.FusedNBitRowwiseQuantizedSBHalfToFloat(encoded, self.bits)
        return values.view(out.shape)

    def nbytes(self, encoded: torch.Tensor) -> int:
        """Return the size of codes, scales and offsets."""
        return encoded.numel()


def _rows(x: torch.Tensor) -> torch.Tensor:
    """View a tensor as rows, see ``Fbgemm``; if 128 does not divide its length, as a single row."""
    if x.dim() > 1 and x.shape[-1] <= _MAX_ROW:
        return x.reshape(-1, x.shape[-1])
    return x.reshape(-1, _ROW) if x.numel() % _ROW == 0 else x.reshape(1, -1)
