"""What Triton really compiles is announced; what it loads from its cache on disk is not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl

from tersor.kernels.runtime import compile_notice
from tersor.kernels.runtime.compile_notice import COMPILING, compile_seconds, on_compile
from tersor.kernels.runtime.gpu.launch import Kernel
from tests.arch.source_files import REPOSITORY

ON_NO_DEVICE = """
import sys
import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tersor.kernels.runtime.compile_notice import compile_seconds, on_compile
from tersor.kernels.runtime.gpu.launch import Kernel

def double(a, size: tl.constexpr):
    at = a + tl.arange(0, size)
    tl.store(at, tl.load(at) * 2)

class Jit:
    # what Triton's launch comes to after it has looked at the arguments
    def __getitem__(self, grid):
        def compile_only(a, size, enable_fp_fusion):
            source = ASTSource(triton.jit(double), {"a": "*fp32", "size": "constexpr"}, {"size": size})
            triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 1})
        return compile_only

torch.cuda.current_device = lambda: 0
heard, seen = [], []
triton.knobs.compilation.listener = lambda cache_hit, **facts: heard.append(cache_hit)

def launch(size):
    kernel = Kernel(double)
    kernel._jit = Jit()
    kernel[(1,)](torch.zeros(8), size=size)

launch(32)
with on_compile(seen.append):
    launch(64)
    seen.append(compile_seconds() > 0)
    launch(32)
    try:
        launch("wrong")
    except Exception as error:
        seen.append(type(error).__name__)
launch(128)
# what others compile is not ours to announce
spent_s = compile_seconds()
Jit()[()](None, 256, False)
seen.append(compile_seconds() == spent_s)
print(seen, heard)
"""


def test_triton_compiles_for_no_device_and_is_announced_once(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(ON_NO_DEVICE, encoding="utf-8")

    def run() -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, script], capture_output=True, text=True, check=False, timeout=300,
            env={
                **os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "TRITON_INTERPRET": "0",
                "TRITON_CACHE_DIR": str(tmp_path / "cache"),
            },
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip(), done.stderr

    failed = "True, False, 'CompilationError'"
    heard = "[False, False, True, False, False]"
    assert run() == (f"[True, False, True, {failed}, True] {heard}", f"{COMPILING}\n")
    # a second process loads all but what failed
    assert run() == (f"[False, {failed}, True] [True, True, True, True, True]", "")


def double(a, size: tl.constexpr):
    at = a + tl.arange(0, size)
    tl.store(at, tl.load(at) * 2)


@pytest.mark.gpu
def test_a_kernel_is_announced_when_a_device_needs_it_compiled(caplog, tmp_path, monkeypatch):
    monkeypatch.setattr(compile_notice, "_compilations", compile_notice._Compilations())
    monkeypatch.setattr(triton.knobs.cache, "dir", str(tmp_path))
    values = torch.ones(64, device="cuda")
    seen = []
    with on_compile(seen.append):
        Kernel(double)[(1,)](values, size=64)
        assert seen == [True, False]
        spent_s = compile_seconds()
        assert spent_s > 0
        # another kernel of the same source comes from the disk
        Kernel(double)[(1,)](values, size=64)
    assert seen == [True, False]
    assert compile_seconds() == spent_s
    assert values.tolist() == [4.0] * 64
    assert caplog.records == []
    Kernel(double)[(1,)](values, size=32)
    assert [record.message for record in caplog.records] == [COMPILING]
