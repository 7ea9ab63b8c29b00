"""Bytes sent by the interfaces of a node, as counted by its kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_FILE: Final = Path("/proc/self/net/dev")
_SENT: Final = 8
"""Index of the bytes sent among the numbers of an interface."""


def sent_nbytes(text: str | None = None) -> dict[str, int]:
    r"""Return the bytes that each interface of this process's namespace has sent, headers included.

    Args:
        text: contents of ``/proc/self/net/dev``; None reads the file.

    Example:
        >>> sent_nbytes("Inter-| Receive | Transmit\n lo: 70 1 0 0 0 0 0 0 90 1 0 0 0 0 0 0\n")
        {'lo': 90}
    """
    found = {}
    for line in (_FILE.read_text(encoding="ascii") if text is None else text).splitlines():
        name, colon, numbers = line.partition(":")
        if colon:
            found[name.strip()] = int(numbers.split()[_SENT])
    return found
