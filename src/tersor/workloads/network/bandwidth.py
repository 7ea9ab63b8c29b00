"""Bandwidth of a link."""

from __future__ import annotations

from dataclasses import dataclass

from tersor.errors import SpecError
from tersor.planning.units import bandwidth_words, parse_bandwidth

_LEAST, _MOST = 10**6, 8 * 10**11


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bandwidth that a link can be throttled to, in bits per second per direction.

    Example:
        >>> Bandwidth.parse("2.5gbit").gbit_s, str(Bandwidth.parse("1000 Mbit"))
        (2.5, '1gbit')
    """

    bits_per_s: int

    def __post_init__(self) -> None:
        """Require a bandwidth that links can be throttled to; predictions accept any bandwidth."""
        if not _LEAST <= self.bits_per_s <= _MOST:
            raise SpecError(f"links are throttled to 1mbit to 800gbit, not {self}")

    @classmethod
    def parse(cls, text: str) -> Bandwidth:
        """Parse a bandwidth in the notation of ``tc``, such as 100mbit or 2.5gbit.

        Raises:
            SpecError: ``text`` is not a bandwidth, or is out of range.
        """
        return cls(round(parse_bandwidth(text)))

    @property
    def gbit_s(self) -> float:
        """Bandwidth in 10**9 bits per second."""
        return self.bits_per_s / 1e9

    def __str__(self) -> str:
        return bandwidth_words(self.bits_per_s, digits=6)
