"""How long a file, a function and a compiled kernel may become."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.arch.source_files import SourceFile, source_files

MAX_FILE_LINES: Final = 500
MAX_FUNCTION_LINES: Final = 60
MAX_KERNEL_LINES: Final = 120


def findings(root: Path) -> list[str]:
    """Return one line per file or function below ``root`` that is too long."""
    return [finding for source in source_files(root) for finding in _check(source)]


def _check(source: SourceFile) -> Iterator[str]:
    num_lines = len(source.text.splitlines())
    if num_lines > MAX_FILE_LINES:
        yield f"{source.path}: {num_lines} lines, at most {MAX_FILE_LINES}"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            compiled = any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)
            allowed = MAX_KERNEL_LINES if compiled else MAX_FUNCTION_LINES
            num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if num_lines > allowed:
                yield f"{source.path}:{node.lineno}: {node.name} has {num_lines} lines, not {allowed}"
