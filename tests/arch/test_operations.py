"""Every operation is declared where the walk over all operations finds it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tersor.kernels import operations
from tests.arch.source_files import PACKAGE, plant, source_files

LEAST_OPERATIONS = 41


def misplaced(package: Path) -> list[str]:
    """Return the operations that are not declared in a package of kernels, with file and line."""
    found = []
    for source in source_files(package):
        is_home = source.path.parts[0] == "kernels" and source.path.name == "__init__.py"
        for node in ast.walk(source.tree):
            is_op = isinstance(node, ast.Call) and "Op" in ast.unparse(node.func).split(".")
            if is_op and not is_home:
                found.append(f"{source.path}:{node.lineno}")
    return found


def test_operations_are_declared_in_the_packages_of_kernels():
    assert misplaced(PACKAGE) == []
    assert len(operations()) >= LEAST_OPERATIONS


@pytest.mark.parametrize("path", ["codecs/mine.py", "kernels/batch/compose.py"])
@pytest.mark.parametrize("call", ["op.Op('x', {})", "op.Op.of(__name__, 'x', cpu='cpu')"])
def test_an_operation_elsewhere_is_found(tmp_path, path, call):
    root = plant(tmp_path, {path: f"from tersor.kernels.runtime import op\nx = {call}\n"})
    assert misplaced(root) == [f"{path}:2"]
