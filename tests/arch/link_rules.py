"""Where the links of a Markdown page lead: files and headings that exist, inside the repository."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

_FENCED = re.compile(r"^(```+|~~~+).*?^\1[^\n]*$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"(`+).+?\1")
_LINK = re.compile(
    r"""\]\(\s*<?([^)\s>]+)|^\[[^\]]+\]:\s*(\S+)|\b(?:href|src)="([^"]+)\"""", re.MULTILINE
)
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)


def pages(repository: Path) -> list[Path]:
    """Return the pages people read, sorted."""
    found = (repository.glob(pattern) for pattern in ("*.md", "docs/**/*.md", "src/**/*.md"))
    return sorted(path for group in found for path in group)


def findings(repository: Path) -> list[str]:
    """Return one line per link that leads nowhere."""
    return [line for page in pages(repository) for line in _check(page, repository)]


def _check(page: Path, repository: Path) -> Iterator[str]:
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    for match in _LINK.finditer(_CODE.sub("", text)):
        link = next(filter(None, match.groups()))
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        where = f"{page.relative_to(repository)}: {link}"
        if not target.is_relative_to(repository) or not target.exists():
            yield f"{where}: there is no such file"
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"{where}: there is no such heading"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, made as GitHub makes them."""
    found: dict[str, int] = {}
    for heading in _HEADING.findall(_FENCED.sub("", page.read_text(encoding="utf-8"))):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {
        slug if n == 0 else f"{slug}-{n}" for slug, most in found.items() for n in range(most + 1)
    }
