"""Reading the source tree as syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = REPOSITORY / "src" / "tersor"


@dataclass(frozen=True)
class SourceFile:
    """One parsed module; ``path`` is relative to the folder that was walked."""

    path: Path
    text: str
    tree: ast.Module

    @classmethod
    def read(cls, file: Path, root: Path) -> SourceFile:
        """Parse ``file`` and name it by its path below ``root``."""
        text = file.read_text(encoding="utf-8")
        return cls(file.relative_to(root), text, ast.parse(text, filename=str(file)))


def source_files(root: Path) -> Iterator[SourceFile]:
    """Yield every Python file below ``root``, in order of path."""
    for file in sorted(root.rglob("*.py")):
        yield SourceFile.read(file, root)


def plant(root: Path, files: dict[str, str]) -> Path:
    """Write a small source tree below ``root`` for a test that plants faults; return ``root``."""
    for name, text in files.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return root
