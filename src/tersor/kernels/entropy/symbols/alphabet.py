"""The alphabet of an entropy coder: a window of consecutive codes, and optionally an escape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

NARROW: Final = 256
"""Largest alphabet whose symbols are stored as uint8."""
WIDE: Final = 4096
"""Largest alphabet; its symbols are stored as int16."""
ESCAPE_NBYTES: Final = 8
"""Cost of an escaped code: its position and its value, 32 bits each."""
WIDE_TABLE_NBYTES: Final = 2048
"""Approximately how much larger the table of a wide alphabet is than that of a narrow one."""
WIDE_VALUES_PER_BYTE: Final = 256
"""To avoid a wide alphabet, escapes may cost one byte per this many values: 0.03 bit per value."""


@dataclass(frozen=True, slots=True)
class Symbols:
    """Codes mapped to ``0 .. alphabet - 1``.

    Attributes:
        symbols: flat; uint8 for an alphabet of up to 256, else int16.
        low: the code of symbol 0.
        alphabet: number of symbols; with escapes, the last one means "escaped".
        escape_positions: int64, ascending.
        escape_codes: int32, the codes at these positions.
    """

    symbols: torch.Tensor
    low: int
    alphabet: int
    escape_positions: torch.Tensor
    escape_codes: torch.Tensor


@dataclass(frozen=True, slots=True)
class Window:
    """The codes ``[low, low + size)``, each of which has its own symbol."""

    low: int
    size: int
    escapes: bool

    @property
    def alphabet(self) -> int:
        """Number of symbols, including the escape."""
        return self.size + self.escapes

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which symbols are stored."""
        return torch.uint8 if self.alphabet <= NARROW else torch.int16


def whole_window(smallest: int, largest: int) -> Window | None:
    """Return the window of all codes, or None if no alphabet is large enough."""
    size = largest - smallest + 1
    return Window(smallest, size, escapes=False) if size <= WIDE else None


def window_around(mean: int, smallest: int, largest: int, alphabet: int) -> Window:
    """Return a window with escapes, centred on the mean code as far as the range of codes allows."""
    size = alphabet - 1
    low = min(max(mean - size // 2, smallest), largest - size + 1)
    return Window(low, size, escapes=True)


def narrow_is_enough(num_escapes: int, num_codes: int) -> bool:
    """True if 256 symbols with this many escapes are better than a 4096-symbol alphabet.

    The wide alphabet costs about 2 KiB of table and decodes at half the speed, so escapes may cost up
    to 0.03 bit per value to avoid it.
    """
    return ESCAPE_NBYTES * num_escapes <= max(WIDE_TABLE_NBYTES, num_codes // WIDE_VALUES_PER_BYTE)
