"""From ``compress`` to a fused kernel it is seven calls, on either device."""

from __future__ import annotations

import inspect

import pytest
import torch

import tersor
from tersor.kernels.batch.cpu import runs
from tersor.kernels.runtime.op import use_backend
from tests.arch.source_files import PACKAGE
from tests.triton_device import INTERPRETED

MOST_CALLS = 7
DECORATORS = ("guarded", "call")
"""What decorators add to a stack: no step of its own."""


def calls_down_to(frames: list[inspect.FrameInfo]) -> list[str]:
    """Return the functions of the package from ``compress`` down to the innermost frame."""
    own = [frame.function for frame in reversed(frames) if frame.filename.startswith(str(PACKAGE))]
    return [name for name in own if name not in DECORATORS]


@pytest.mark.parametrize("codec", ["flat", "rows"])
def test_from_compress_to_a_cpu_kernel(codec, monkeypatch):
    seen: list[list[str]] = []
    run = runs.run_into_scratch

    def recording(*args):
        seen.append([*calls_down_to(inspect.stack()), "run_into_scratch"])
        return run(*args)

    monkeypatch.setattr(runs, "run_into_scratch", recording)
    tersor.compress(torch.randn(64, 16), tersor.Bound.relative(0.01), codec=codec)
    (chain,) = seen
    assert chain[0] == "compress"
    # each function calls the next, and the last one the kernel
    assert len(chain) <= MOST_CALLS, chain


@pytest.mark.skipif(not INTERPRETED, reason="Python calls kernels in the interpreter alone")
def test_from_compress_to_a_gpu_kernel(monkeypatch):
    packed = pytest.importorskip("tersor.kernels.batch.gpu.packed")
    seen: list[list[str]] = []
    encode = packed.encode_small

    def recording(*args):
        seen.append([*calls_down_to(inspect.stack()), "encode_small"])
        return encode(*args)

    monkeypatch.setattr(packed, "encode_small", recording)
    with use_backend("gpu"):
        tersor.compress(torch.randn(100), tersor.Bound.relative(0.01), codec="flat")
    (chain,) = seen
    assert chain[0] == "compress"
    assert len(chain) <= MOST_CALLS, chain
