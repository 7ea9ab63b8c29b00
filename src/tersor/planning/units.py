"""Parse and format bandwidths and times in human-readable units."""

from __future__ import annotations

import math
import re
from typing import Final

from tersor.errors import SpecError

BITS: Final = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "tbit": 1e12}
"""Bits per second of each unit."""
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_LADDER: Final = (1.0, 2.0, 5.0)
_MAX_RANKS: Final = 1 << 20


def _parse(text: str, units: dict[str, float], what: str) -> float:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+?)(?:/s)?\s*", text.lower())
    if found is None or found[2] not in units:
        raise SpecError(f"{what}, not {text!r}")
    return float(found[1]) * units[found[2]]


def parse_bandwidth(text: str) -> float:
    """Parse a bandwidth and return it in bits per second.

    Raises:
        SpecError: the text is not a bandwidth, or the bandwidth is not above 0.

    Example:
        >>> parse_bandwidth("2.5 Gbit/s")
        2500000000.0
    """
    wanted = f"a bandwidth is a number above 0 with a unit ({', '.join(BITS)}), as in 100gbit"
    bits = _parse(text, BITS, wanted)
    if bits <= 0:
        raise SpecError(f"{wanted}, not {text!r}")
    return bits


def parse_seconds(text: str) -> float:
    """Parse a time and return it in seconds.

    Raises:
        SpecError: the text is not a time.

    Example:
        >>> parse_seconds("2ms")
        0.002
    """
    return _parse(text, _SECONDS, "a time is a number with a unit, as in 5us or 2ms")


def bandwidth_words(bits_per_s: float, digits: int = 3) -> str:
    """Format a bandwidth with ``digits`` significant digits, in the largest unit that fits.

    A unit fits if the rounded value is at least one of it.

    Example:
        >>> bandwidth_words(2.5e9), bandwidth_words(123.4e6), bandwidth_words(1e12)
        ('2.5gbit', '123mbit', '1tbit')
        >>> bandwidth_words(12.345e9, digits=6), bandwidth_words(500)
        ('12.345gbit', '0.5kbit')
    """
    # a value that rounds up to 1 of a unit is written in that unit
    rounded = bits_per_s * (1 + 0.5 * 10**-digits)
    unit = max((u for u in BITS if BITS[u] <= rounded), key=BITS.__getitem__, default="kbit")
    return f"{bits_per_s / BITS[unit]:.{digits}g}{unit}"


def parse_ranks(text: str) -> list[int]:
    """Parse comma-separated rank counts and return them sorted, without duplicates.

    Raises:
        SpecError: the list is empty, or an entry is not a number from 2 to 2**20.

    Example:
        >>> parse_ranks("64, 8,64")
        [8, 64]
    """
    try:
        numbers = {int(word) for word in text.split(",") if word.strip()}
    except ValueError as error:
        raise SpecError(f"ranks are numbers separated by commas, not {text!r}") from error
    if not numbers or not all(2 <= number <= _MAX_RANKS for number in numbers):
        raise SpecError(f"ranks are numbers from 2 to {_MAX_RANKS}, not {text!r}")
    return sorted(numbers)


def parse_sweep(text: str) -> tuple[float, ...]:
    """Return both ends of ``LOW..HIGH`` and every 1, 2 and 5 times a power of ten between them.

    Raises:
        SpecError: the text is not two bandwidths, the lower one first.

    Example:
        >>> [bandwidth_words(bits) for bits in parse_sweep("800mbit..10gbit")]
        ['800mbit', '1gbit', '2gbit', '5gbit', '10gbit']
    """
    low_text, dots, high_text = text.partition("..")
    if not dots:
        raise SpecError(f"a sweep is two bandwidths, as in 1gbit..400gbit, not {text!r}")
    low, high = parse_bandwidth(low_text), parse_bandwidth(high_text)
    if not low < high:
        raise SpecError(f"a sweep goes from a lower bandwidth to a higher one, not {text!r}")
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (factor * 10.0**power for power in powers for factor in _LADDER)
    return (low, *(bits for bits in steps if low < bits < high), high)
