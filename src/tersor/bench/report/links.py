"""Find the fastest codec per link, among those measured at one place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tersor.bench.report.measured import Measured
from tersor.bench.report.section import MeasuredEncoder, Section

Links = Sequence[float]
"""Bandwidths in Gbit/s, the most relevant one first."""
COMMON_LINKS: Final[Links] = (1.0, 10.0, 25.0, 100.0, 200.0, 400.0, 1600.0)
"""Common network bandwidths."""


def gbit_words(gbit_s: float) -> str:
    """Format a bandwidth for a report."""
    return f"{gbit_s:g} Gbit/s"


def best_codecs(found: Sequence[Measured], links: Links) -> list[tuple[float, Measured, float]]:
    """Return the bandwidth, the fastest codec and its speed-up for each link."""
    whole = _eligible(found)
    if not whole:
        return []
    best = [(link, max(whole, key=lambda one: one.speedup(link))) for link in links]
    return [(link, one, one.speedup(link)) for link, one in best]


def add_chooser(
    section: Section, about: str, found: Sequence[Measured], links: Links, *, note: str = ""
) -> None:
    """Add a bandwidth control, initially at the first link, if there is more than one codec."""
    encoders = [
        MeasuredEncoder(one.described, one.ratio, one.encode_gbps, one.decode_gbps)
        for one in _eligible(found)
    ]
    if len(encoders) > 1:
        section.links(about, encoders, links[0], note)


def _eligible(found: Sequence[Measured]) -> list[Measured]:
    return [one for one in found if not one.is_copy and not one.broken]
