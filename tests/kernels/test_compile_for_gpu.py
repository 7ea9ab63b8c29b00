"""Kernels compile for an H200, whatever machine this is; the interpreter does not see what a compiler refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("triton")

NAMES = (
    "flat", "delta", "delta-2d", "delta-3d", "ans", "ans-wide", "ans-1d", "ans-static",
    "rows", "group4", "fp8", "rms", "mask4", "mask2", "group2", "group2-seed", "replay",
)  # fmt: skip
CODECS = NAMES[:-1]


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory) -> dict[str, dict[str, Any]]:
    """What compiling gave, by name: in one process, as most codecs share kernels with others."""
    asking = [item for item in request.session.items if "outcomes" in item.fixturenames]
    names = [item.callspec.params["name"] for item in asking]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_for_gpu", *names],
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return {found["name"]: found for found in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize(
    "name",
    [
        *NAMES,
        *(pytest.param(f"{name}:all", marks=pytest.mark.slow) for name in CODECS),
        # planes of residuals in all dtypes and both coders: a minute and a half on a busy core
        pytest.param("ans-3d:all", marks=pytest.mark.slow),
    ],
)
def test_kernels_compile(name, outcomes):
    found = outcomes[name]
    assert not found["refused"], found["refused"]
    assert found["num_forms"] > 0


@pytest.mark.parametrize("name", ["faulty"])
def test_a_kernel_that_only_the_interpreter_runs_is_refused(name, outcomes):
    assert "redefines it" in outcomes[name]["refused"]
