"""Text made safe for pages and figures, whatever a result file holds."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return text that HTML and XML can hold; what neither can becomes a mark.

    Example:
        >>> printable("a\x00b")
        'a\ufffdb'
    """
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)
