"""Compiled kernels on disk are of the sources that stand there now."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tests.arch.source_files import REPOSITORY

RUN = """
import torch
from tersor.kernels.quantize import finite_range
from tersor.kernels.runtime.compile_notice import on_compile

compiled = []
with on_compile(compiled.append):
    finite_range(torch.ones(9))
print(len(compiled))
"""


def test_a_kernel_is_compiled_anew_when_any_source_changes(tmp_path):
    source = tmp_path / "src"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(REPOSITORY / "src" / "tersor", source / "tersor", ignore=ignored)

    def num_events() -> int:
        done = subprocess.run(
            [sys.executable, "-c", RUN], capture_output=True, text=True, check=True, timeout=300,
            env={**os.environ, "PYTHONPATH": str(source), "NUMBA_CACHE_DIR": str(tmp_path / "cache")},
        )  # fmt: skip
        return int(done.stdout)

    assert num_events() > 0
    assert num_events() == 0
    # a file that the kernel does not even import
    with (source / "tersor/kernels/quantize/grid.py").open("a") as file:
        file.write("# another line")
    assert num_events() > 0
