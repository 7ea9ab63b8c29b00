"""Text made safe for pages and figures, whatever a result file holds."""

from __future__ import annotations

import html


def escaped(text: str) -> str:
    r"""Return text that HTML and XML show as it is; what neither can hold becomes a mark.

    Example:
        >>> escaped('<b> & "\x00"')
        '&lt;b&gt; &amp; &quot;\ufffd&quot;'
    """
    shown = "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)
    return html.escape(shown)
