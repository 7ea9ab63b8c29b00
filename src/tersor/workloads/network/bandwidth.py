"""How fast a link is."""

from __future__ import annotations

from dataclasses import dataclass

from tersor.errors import SpecError
from tersor.planning.units import bandwidth_words, parse_bandwidth

_LEAST, _MOST = 10**6, 8 * 10**11


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bits per second of a link that can be throttled to them, in each direction.

    Example:
        >>> Bandwidth.parse("2.5gbit").gbit_s, str(Bandwidth.parse("1000 Mbit"))
        (2.5, '1gbit')
    """

    bits_per_s: int

    def __post_init__(self) -> None:
        """Refuse what no link can be throttled to; predictions take any bandwidth."""
        if not _LEAST <= self.bits_per_s <= _MOST:
            raise SpecError(f"links are throttled to 1mbit to 800gbit, not {self}")

    @classmethod
    def parse(cls, text: str) -> Bandwidth:
        """Read a bandwidth as ``tc`` writes it, such as 100mbit or 2.5gbit.

        Raises:
            SpecError: it is not one.
        """
        return cls(round(parse_bandwidth(text)))

    @property
    def gbit_s(self) -> float:
        """10**9 bits per second."""
        return self.bits_per_s / 1e9

    def __str__(self) -> str:
        return bandwidth_words(self.bits_per_s, digits=6)
