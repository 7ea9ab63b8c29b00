"""How fast a link is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from tersor.errors import SpecError

_UNITS: Final = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_LEAST, _MOST = 10**6, 10**11


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bits per second of a link, in each direction.

    Example:
        >>> Bandwidth.parse("2.5gbit").gbps, str(Bandwidth.parse("1000 Mbit"))
        (0.3125, '1gbit')
    """

    bits_per_s: int

    def __post_init__(self) -> None:
        """Refuse what no link of a benchmark can have."""
        if not _LEAST <= self.bits_per_s <= _MOST:
            raise SpecError(f"a link has from 1mbit to 100gbit, not {self.bits_per_s} bits/s")

    @classmethod
    def parse(cls, text: str) -> Bandwidth:
        """Read a bandwidth as ``tc`` writes it, such as 100mbit or 2.5gbit.

        Raises:
            SpecError: it is not one.
        """
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmg]bit)(?:/s)?\s*", text.lower())
        if found is None:
            raise SpecError(f"a bandwidth is a number with a unit, as in 100mbit, not {text!r}")
        return cls(int(Fraction(found[1]) * _UNITS[found[2]]))

    @property
    def gbps(self) -> float:
        """10**9 bytes per second."""
        return self.bits_per_s / 8e9

    def __str__(self) -> str:
        unit = max((u for u in _UNITS if _UNITS[u] <= self.bits_per_s), key=_UNITS.__getitem__)
        return f"{self.bits_per_s / _UNITS[unit]:g}{unit}"
