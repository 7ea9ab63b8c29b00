"""Ways to send floats, between which a reader chooses by moving the bandwidth of a link."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple

from tersor.bench.core.markup import escaped


class Way(NamedTuple):
    """An encoder as it was measured: original over encoded bytes, and 10**9 original bytes per second."""

    name: str
    ratio: float
    encode_gbps: float
    decode_gbps: float


def link_chooser(about: str, ways: Sequence[Way], gbit_s: float, note: str) -> str:
    """Return a part that ``links.js`` fills: the fastest way at a bandwidth, and where its time goes.

    It begins at ``gbit_s``, ends with the note, and stays hidden where no script runs.
    """
    # three significant digits more than are shown; a page has many of them
    values = [[way.name, *(float(f"{number:.6g}") for number in way[1:])] for way in ways]
    return (
        f'<section class="links" hidden data-gbit="{gbit_s:g}" data-ways="{escaped(json.dumps(values))}">'
        f"<h4>Which is fastest on your link? {escaped(about)}</h4>"
        + (f'<p class="note">{escaped(note)}</p>' if note else "")
        + "</section>"
    )
