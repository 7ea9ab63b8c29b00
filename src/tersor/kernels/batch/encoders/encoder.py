"""The interface that every encoder implements."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch

from tersor.kernels.predict.axes import residual, restore
from tersor.kernels.quantize import Grid, bounded_dequantize, bounded_quantize
from tersor.kernels.quantize.grid import Range


class Encoder(ABC):
    """Lossless coding of flat int32 codes into a self-delimiting body of a multiple of 8 bytes.

    ``lead`` is the number of bytes, of any content, to leave before a returned body.
    """

    @property
    @abstractmethod
    def form(self) -> str:
        """Name of the coding, by which backends list what they fuse with a predictor."""

    @abstractmethod
    def encode(self, codes: torch.Tensor, lead: int = 0) -> torch.Tensor:
        """Return the uint8 body of ``codes``."""

    @abstractmethod
    def decode(self, body: torch.Tensor, num_codes: int) -> tuple[torch.Tensor, int]:
        """Return the codes and the number of body bytes read.

        Raises:
            CorruptDataError: the body is not one that ``encode`` writes.
        """

    @abstractmethod
    def max_nbytes(self, num_codes: int) -> int:
        """Return the maximum size of a body of ``num_codes`` codes."""

    def quantize_encode(
        self, x: torch.Tensor, grid: Grid, lead: int = 0, limits: Range | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Quantize and encode; return the body and the positions of the outliers.

        ``limits`` is the range of ``x``, if the caller knows it.
        """
        del limits
        codes, positions = bounded_quantize(x, grid)
        return self.encode(codes, lead), positions

    def decode_dequantize(self, body: torch.Tensor, step: float, out: torch.Tensor) -> int:
        """Decode into the contiguous ``out``; return the number of body bytes read."""
        codes, nbytes = self.decode(body, out.numel())
        bounded_dequantize(codes, step, out)
        return nbytes

    def predict_encode(
        self, x: torch.Tensor, grid: Grid, dims: int, lead: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Quantize, predict along ``dims`` axes and encode; return what ``quantize_encode`` does."""
        codes, positions = bounded_quantize(x, grid)
        return self.encode(residual(codes, tuple(x.shape), dims), lead), positions

    def decode_restore(self, body: torch.Tensor, step: float, dims: int, out: torch.Tensor) -> int:
        """Invert ``predict_encode``, writing to the contiguous ``out``; return the number of body bytes read."""
        residuals, nbytes = self.decode(body, out.numel())
        bounded_dequantize(restore(residuals, tuple(out.shape), dims), step, out)
        return nbytes
