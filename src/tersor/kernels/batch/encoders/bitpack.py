"""Fixed-length encoder: each block of codes has the field width that its largest code needs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tersor.errors import SpecError
from tersor.kernels.batch.encoders.encoder import Encoder
from tersor.kernels.pack.blocks import pack, quantize_pack, unpack, unpack_dequantize
from tersor.kernels.pack.blocks.layout import BitpackLayout
from tersor.kernels.pack.delta import delta_pack, delta_unpack
from tersor.kernels.predict.axes import is_flat
from tersor.kernels.quantize import Grid
from tersor.kernels.quantize.grid import Range


@dataclass(frozen=True, kw_only=True, slots=True)
class BitpackEncoder(Encoder):
    """Blocks of 32 or 64 codes; ``base`` stores each block relative to its smallest code."""

    block: int = 32
    base: bool = False

    def __post_init__(self) -> None:
        """Reject block sizes without a kernel, and values of ``base`` that are not bool."""
        if type(self.block) is not int or self.block not in (32, 64):
            raise SpecError(f"block must be 32 or 64, not {self.block}")
        if not isinstance(self.base, bool):
            raise SpecError(f"base must be true or false, not {self.base!r}")

    @property
    def form(self) -> str:
        """See ``Encoder.form``."""
        return "bitpack-base" if self.base else "bitpack"

    def encode(self, codes: torch.Tensor, lead: int = 0) -> torch.Tensor:
        """See ``Encoder.encode``."""
        body: torch.Tensor = pack(codes, self.block, self.base, lead)
        return body

    def decode(self, body: torch.Tensor, num_codes: int) -> tuple[torch.Tensor, int]:
        """See ``Encoder.decode``."""
        codes, nbytes = unpack(body, num_codes, self.block, self.base)
        return codes, nbytes

    def max_nbytes(self, num_codes: int) -> int:
        """See ``Encoder.max_nbytes``."""
        layout = BitpackLayout(num_codes, self.block)
        bases = BitpackLayout(layout.num_blocks, 32).max_nbytes if self.base else 0
        return layout.max_nbytes + bases

    def quantize_encode(
        self, x: torch.Tensor, grid: Grid, lead: int = 0, limits: Range | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Quantize and pack in one pass over memory."""
        del limits
        body, positions = quantize_pack(x, grid, self.block, self.base, lead)
        return body, positions

    def decode_dequantize(self, body: torch.Tensor, step: float, out: torch.Tensor) -> int:
        """Unpack and dequantize in one pass over memory."""
        nbytes: int = unpack_dequantize(body, step, out, self.block, self.base)
        return nbytes

    def predict_encode(
        self, x: torch.Tensor, grid: Grid, dims: int, lead: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Encoder.predict_encode``; takes one pass over memory if only neighbours predict."""
        if self.base or not is_flat(x.dim(), dims):
            # not super(): slots=True makes a new class, which its zero-argument form misses
            return Encoder.predict_encode(self, x, grid, dims, lead)
        body, positions = delta_pack(x, grid, self.block, lead)
        return body, positions

    def decode_restore(self, body: torch.Tensor, step: float, dims: int, out: torch.Tensor) -> int:
        """See ``Encoder.decode_restore``."""
        if self.base or not is_flat(out.dim(), dims):
            return Encoder.decode_restore(self, body, step, dims, out)
        nbytes: int = delta_unpack(body, step, out, self.block)
        return nbytes
