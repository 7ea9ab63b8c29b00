"""Kernels compile for an H200, whatever machine this is; the interpreter does not see what a compiler refuses."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")


def compiled(name: str, cache: object) -> subprocess.CompletedProcess[str]:
    """Compile the kernels of one codec in a process that does not interpret them."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_for_gpu", name],
        env={**environment, "TRITON_CACHE_DIR": str(cache)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "flat", "delta", "delta-2d", "delta-3d", "ans", "ans-wide", "ans-1d", "ans-static",
        "rows", "group4", "fp8", "rms", "mask4", "mask2", "group2", "group2-seed", "replay",
        # planes of residuals in all dtypes and both coders: a minute and a half on a busy core
        pytest.param("ans-3d", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_kernels_compile(name, tmp_path):
    done = compiled(name, tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


def test_a_kernel_that_only_the_interpreter_runs_is_refused(tmp_path):
    done = compiled("faulty", tmp_path)
    assert done.returncode != 0
    assert "redefines it" in done.stderr
