"""Launching compiled kernels directly: whatever Triton would compile anew for is told apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")
from tersor.kernels.runtime.gpu import launch as module
from tersor.kernels.runtime.gpu.launch import launch


class Compiled:
    """Remembers the launches of one compiled form."""

    def __init__(self) -> None:
        self.launches: list[Any] = []

    def __getitem__(self, grid: Any) -> Any:
        return lambda *arguments: self.launches.append((grid, arguments))


class Kernel:
    """Remembers what it was compiled for; every form is a new one."""

    def __init__(self) -> None:
        self.compiled: list[tuple[Compiled, dict[str, Any]]] = []

    def __getitem__(self, grid: Any) -> Any:
        def compile_and_run(*_: Any, **options: Any) -> Compiled:
            self.compiled.append((Compiled(), options))
            return self.compiled[-1][0]

        return compile_and_run


@pytest.fixture
def kernel(monkeypatch) -> Kernel:
    monkeypatch.setattr(module, "_INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return Kernel()


MEMORY = torch.zeros(64, dtype=torch.float32)


def run(kernel: Kernel, *arguments: Any, num_warps: int = 1, size: int = 8, **options: Any) -> None:
    launch(kernel, 3, *arguments, constants={"SIZE": size}, num_warps=num_warps, **options)


def test_a_form_is_compiled_once_and_then_launched_by_address(kernel) -> None:
    for values in (MEMORY[:16], MEMORY[16:]):
        run(kernel, values, 48, None, (values, 5))
    [(compiled, options)] = kernel.compiled
    assert options == {"SIZE": 8, "num_warps": 1, "maxnreg": None, "enable_fp_fusion": False}
    address = MEMORY[16:].data_ptr()
    assert compiled.launches == [((3, 1, 1), (address, 48, None, (address, 5), 8))]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((MEMORY,), (MEMORY[1:],)),
        ((MEMORY,), (MEMORY.to(torch.float64),)),
        ((MEMORY,), (None,)),
        ((3,), (1,)),
        ((3,), (32,)),
        ((3,), (2**31 + 3,)),
        (((MEMORY, 3),), ((MEMORY[1:], 3),)),
        (((MEMORY, 3),), ((MEMORY, 16),)),
        ((3, (5, 7)), ((3, 5), 7)),
        ((MEMORY,), (torch.empty(0, device="meta"),)),
    ],
)
def test_another_form_is_compiled_anew(kernel, first, second) -> None:
    for arguments in (first, second, first, second):
        run(kernel, *arguments)
    assert len(kernel.compiled) == 2
    assert [len(compiled.launches) for compiled, _ in kernel.compiled] == [1, 1]


@pytest.mark.parametrize("other", [{"num_warps": 2}, {"size": 4}, {"max_registers": 128}])
def test_other_options_are_compiled_anew(kernel, other) -> None:
    run(kernel, MEMORY)
    run(kernel, MEMORY, **other)
    assert len(kernel.compiled) == 2


@pytest.mark.parametrize("odd", [1.0, True, "x"])
def test_what_triton_would_take_otherwise_is_refused(kernel, odd) -> None:
    with pytest.raises(TypeError, match="kernels take tensors"):
        run(kernel, odd)


def test_each_device_has_its_own(kernel, monkeypatch) -> None:
    run(kernel, MEMORY)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    run(kernel, MEMORY)
    assert len(kernel.compiled) == 2
