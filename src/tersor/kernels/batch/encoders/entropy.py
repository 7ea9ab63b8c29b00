"""Entropy encoders: codes as symbols of an alphabet, coded by Huffman or rANS."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace

import torch

from tersor.errors import SpecError
from tersor.kernels.batch.encoders.encoder import Encoder
from tersor.kernels.entropy.huffman import huffman_decode, huffman_encode
from tersor.kernels.entropy.huffman.layout import HuffmanLayout
from tersor.kernels.entropy.rans import rans_decode, rans_decode_dequantize, rans_encode
from tersor.kernels.entropy.rans.layout import RansLayout, prob_bits
from tersor.kernels.entropy.symbols import (
    Symbols,
    dequantize_symbols,
    map_symbols,
    quantize_symbols,
    unmap_symbols,
)
from tersor.kernels.entropy.symbols import body as body_layout
from tersor.kernels.entropy.symbols.alphabet import ESCAPE_NBYTES, NARROW, WIDE, Window
from tersor.kernels.quantize import Grid, bounded_quantize, finite_range
from tersor.kernels.quantize.grid import Range


class EntropyEncoder(Encoder):
    """Common part of Huffman and rANS: the alphabet and its escapes."""

    def window(self) -> Window | None:
        """Return the alphabet's window if it is part of the spec; None if it depends on the codes."""
        return None

    @abstractmethod
    def encode_symbols(self, symbols: torch.Tensor, alphabet: int) -> torch.Tensor:
        """Return the coder's body."""

    @abstractmethod
    def decode_symbols(
        self, body: torch.Tensor, num_symbols: int, alphabet: int
    ) -> tuple[torch.Tensor, int]:
        """Return the symbols and the number of bytes read."""

    @abstractmethod
    def max_symbols_nbytes(self, num_symbols: int) -> int:
        """Return the maximum size of a coder's body."""

    def encode_mapped(self, mapped: Symbols, lead: int = 0) -> torch.Tensor:
        """Return the body of codes that are already mapped to symbols."""
        coded = self.encode_symbols(mapped.symbols, mapped.alphabet)
        return body_layout.join(mapped, coded, lead)

    def decode_mapped(self, body: torch.Tensor, num_codes: int) -> tuple[Symbols, int]:
        """Return the mapped codes and the number of body bytes read."""
        mapped, coded, start = body_layout.split(body, num_codes, self.window())
        symbols, nbytes = self.decode_symbols(coded, num_codes, mapped.alphabet)
        return replace(mapped, symbols=symbols), start + nbytes

    def encode(self, codes: torch.Tensor, lead: int = 0) -> torch.Tensor:
        """See ``Encoder.encode``."""
        return self.encode_mapped(map_symbols(codes, self.window()), lead)

    def decode(self, body: torch.Tensor, num_codes: int) -> tuple[torch.Tensor, int]:
        """See ``Encoder.decode``."""
        mapped, nbytes = self.decode_mapped(body, num_codes)
        return unmap_symbols(mapped.symbols, mapped), nbytes

    def max_nbytes(self, num_codes: int) -> int:
        """See ``Encoder.max_nbytes``."""
        return (
            body_layout.HEADER.size + ESCAPE_NBYTES * num_codes + self.max_symbols_nbytes(num_codes)
        )

    def quantize_encode(
        self, x: torch.Tensor, grid: Grid, lead: int = 0, limits: Range | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Quantize directly to symbols and encode them."""
        window = self.window()
        if window is not None:
            codes, positions = bounded_quantize(x, grid)
            return self.encode_mapped(map_symbols(codes, window), lead), positions
        low, high = finite_range(x).tolist() if limits is None else limits
        mapped, positions = quantize_symbols(x, grid, low, high)
        return self.encode_mapped(mapped, lead), positions

    def decode_dequantize(self, body: torch.Tensor, step: float, out: torch.Tensor) -> int:
        """Decode symbols directly to values."""
        mapped, nbytes = self.decode_mapped(body, out.numel())
        dequantize_symbols(mapped.symbols, mapped, step, out)
        return nbytes


@dataclass(frozen=True, kw_only=True, slots=True)
class HuffmanEncoder(EntropyEncoder):
    """Huffman coding: the fastest to decode on a CPU."""

    @property
    def form(self) -> str:
        """See ``Encoder.form``."""
        return "huffman"

    def encode_symbols(self, symbols: torch.Tensor, alphabet: int) -> torch.Tensor:
        """See ``EntropyEncoder.encode_symbols``."""
        body: torch.Tensor = huffman_encode(symbols, alphabet)
        return body

    def decode_symbols(
        self, body: torch.Tensor, num_symbols: int, alphabet: int
    ) -> tuple[torch.Tensor, int]:
        """See ``EntropyEncoder.decode_symbols``."""
        symbols, nbytes = huffman_decode(body, num_symbols, alphabet)
        return symbols, nbytes

    def max_symbols_nbytes(self, num_symbols: int) -> int:
        """See ``EntropyEncoder.max_symbols_nbytes``."""
        return HuffmanLayout(num_symbols, WIDE).max_nbytes


@dataclass(frozen=True, kw_only=True, slots=True)
class AnsEncoder(EntropyEncoder):
    """rANS coding: within 1 % of the entropy, and one block per GPU warp.

    ``frequencies`` is a table known to both sides: one entry per code, centred on code 0, then one for
    the escape. It must sum to 4096 (up to 256 entries) or 16384.
    """

    frequencies: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Reject tables that do not sum to the coder's scale."""
        table = self.frequencies
        if table is None:
            return
        if not 2 <= len(table) <= WIDE or any(type(f) is not int or f < 1 for f in table):
            raise SpecError("frequencies must be 2 to 4096 whole numbers of at least 1")
        if sum(table) != 1 << prob_bits(len(table)):
            scale = 1 << prob_bits(len(table))
            limit = f"up to {NARROW}" if len(table) <= NARROW else f"more than {NARROW}"
            raise SpecError(f"{limit} frequencies must sum to {scale}, not {sum(table)}")

    @property
    def form(self) -> str:
        """See ``Encoder.form``."""
        return "ans" if self.frequencies is None else "ans-static"

    def window(self) -> Window | None:
        """See ``EntropyEncoder.window``."""
        if self.frequencies is None:
            return None
        size = len(self.frequencies) - 1
        return Window(-(size // 2), size, escapes=True)

    def _table(self, device: torch.device) -> torch.Tensor | None:
        if self.frequencies is None:
            return None
        return torch.tensor(self.frequencies, dtype=torch.int64, device=device)

    def encode_symbols(self, symbols: torch.Tensor, alphabet: int) -> torch.Tensor:
        """See ``EntropyEncoder.encode_symbols``."""
        body: torch.Tensor = rans_encode(symbols, alphabet, self._table(symbols.device))
        return body

    def decode_symbols(
        self, body: torch.Tensor, num_symbols: int, alphabet: int
    ) -> tuple[torch.Tensor, int]:
        """See ``EntropyEncoder.decode_symbols``."""
        symbols, nbytes = rans_decode(body, num_symbols, alphabet, self._table(body.device))
        return symbols, nbytes

    def decode_dequantize(self, body: torch.Tensor, step: float, out: torch.Tensor) -> int:
        """See ``Encoder.decode_dequantize``."""
        mapped, coded, start = body_layout.split(body, out.numel(), self.window())
        nbytes: int = rans_decode_dequantize(coded, mapped, step, out, self._table(body.device))
        return start + nbytes

    def max_symbols_nbytes(self, num_symbols: int) -> int:
        """See ``EntropyEncoder.max_symbols_nbytes``."""
        return RansLayout(num_symbols, WIDE, static=False).max_nbytes
