"""Packages that offer codecs, installed for a test: a module and the metadata that names it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

NEGATE = """
from dataclasses import dataclass
from typing import ClassVar
from tersor.codecs.raw import Raw

@dataclass(frozen=True, kw_only=True, slots=True)
class Negate(Raw):
    codec_id: ClassVar[str] = "negate"
    strength: int = 1

    def encode(self, xs, bounds=None):
        return Raw.encode(self, [-x for x in xs], bounds)

    def decode(self, encoded, outs):
        Raw.decode(self, encoded, outs)
        for out in outs:
            out.neg_()
"""


def install(folder: Path, package: str, offers: Mapping[str, str], source: str) -> None:
    """Install a package into a folder that is, or will be, on Python's path.

    Args:
        folder: where; it stays the test's to put on the path.
        package: name of the distribution, and of its one module with ``_`` for ``-``.
        offers: names in that module, by the id of the entry point.
        source: text of the module.
    """
    module = package.replace("-", "_")
    (folder / f"{module}.py").write_text(source, encoding="utf-8")
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8"
    )
    lines = [f"{codec_id} = {module}:{name}\n" for codec_id, name in offers.items()]
    (info / "entry_points.txt").write_text(f"[tersor.codecs]\n{''.join(lines)}", encoding="utf-8")
