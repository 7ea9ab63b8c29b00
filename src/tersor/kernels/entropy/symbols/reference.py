"""Codes to symbols and back in plain torch."""

from __future__ import annotations

import torch

from tersor.kernels.entropy.symbols.alphabet import (
    NARROW,
    WIDE,
    Symbols,
    Window,
    narrow_is_enough,
    whole_window,
    window_around,
)


def choose_window(codes: torch.Tensor) -> Window:
    """Return the window of codes that the alphabet covers.

    This is the first that applies: all codes if they span at most 256; 255 codes around the mean with
    an escape if few codes escape; all codes if they span at most 4096; else 4095 codes around the mean
    with an escape.
    """
    if codes.numel() == 0:
        return Window(0, 1, escapes=False)
    smallest, largest = int(codes.min()), int(codes.max())
    whole = whole_window(smallest, largest)
    if whole is not None and whole.size <= NARROW:
        return whole
    mean = int(codes.to(torch.int64).sum()) // codes.numel()
    narrow = window_around(mean, smallest, largest, NARROW)
    inside = (codes >= narrow.low) & (codes < narrow.low + narrow.size)
    if narrow_is_enough(codes.numel() - int(inside.sum()), codes.numel()):
        return narrow
    return whole or window_around(mean, smallest, largest, WIDE)


def map_symbols(codes: torch.Tensor, window: Window | None = None) -> Symbols:
    """Map int32 codes to the symbols of ``window``, or of the window that ``choose_window`` returns.

    Example:
        >>> mapped = map_symbols(torch.tensor([5, 7, 5], dtype=torch.int32))
        >>> mapped.symbols.tolist(), mapped.low, mapped.alphabet
        ([0, 2, 0], 5, 3)
    """
    window = window or choose_window(codes)
    relative = codes.to(torch.int64) - window.low
    escaped = (relative < 0) | (relative >= window.size)
    symbols = torch.where(escaped, window.size, relative).to(window.dtype)
    positions = torch.nonzero(escaped).view(-1)
    return Symbols(symbols, window.low, window.alphabet, positions, codes[positions])


def unmap_symbols(symbols: torch.Tensor, mapped: Symbols) -> torch.Tensor:
    """Return the int32 codes of ``symbols``, using the low code and escapes of ``mapped``."""
    codes = symbols.to(torch.int32) + mapped.low
    codes[mapped.escape_positions] = mapped.escape_codes
    return codes
