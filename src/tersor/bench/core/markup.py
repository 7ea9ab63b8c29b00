"""Text made safe for pages and figures, whatever a result file holds."""

from __future__ import annotations

import html


def printable(text: str) -> str:
    r"""Return text that HTML and XML can hold; what neither can becomes a mark.

    Example:
        >>> printable("a\x00b")
        'a\ufffdb'
    """
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def escaped(text: str) -> str:
    r"""Return text that HTML shows as it is.

    Example:
        >>> escaped('<b> & "\x00"')
        '&lt;b&gt; &amp; &quot;\ufffd&quot;'
    """
    return html.escape(printable(text))
