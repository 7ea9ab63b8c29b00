from __future__ import annotations

import pytest

from tests.arch.length_rules import (
    MAX_FILE_LINES,
    MAX_FUNCTION_LINES,
    MAX_KERNEL_LINES,
    findings,
)
from tests.arch.source_files import PACKAGE, REPOSITORY, plant


def _function(num_lines: int, decorator: str = "") -> str:
    return f"{decorator}\ndef long():\n" + "    pass\n" * (num_lines - 1)


@pytest.mark.parametrize("root", [PACKAGE, REPOSITORY / "tests"], ids=["src", "tests"])
def test_files_and_functions_stay_short(root) -> None:
    assert findings(root) == []


@pytest.mark.parametrize(
    ("longest", "too_long"),
    [
        ("pass\n" * MAX_FILE_LINES, "pass\n" * (MAX_FILE_LINES + 1)),
        (_function(MAX_FUNCTION_LINES), _function(MAX_FUNCTION_LINES + 1)),
        (_function(MAX_KERNEL_LINES, "@njit"), _function(MAX_KERNEL_LINES + 1, "@njit")),
        (
            _function(MAX_KERNEL_LINES, "@jit_kernel()"),
            _function(MAX_KERNEL_LINES + 1, "@jit_kernel()"),
        ),
    ],
    ids=["file", "function", "numba-kernel", "triton-kernel"],
)
def test_one_line_too_many_is_found(longest, too_long, tmp_path) -> None:
    assert findings(plant(tmp_path, {"x.py": longest})) == []
    assert len(findings(plant(tmp_path, {"x.py": too_long}))) == 1
