"""Launching compiled kernels directly: whatever Triton would compile anew for is told apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")
import triton.language as tl

from tersor.kernels.runtime.gpu import launch as module
from tersor.kernels.runtime.gpu.launch import Kernel

STREAM = 77


class Compiled:
    """Remembers the launches of one compiled form, directly and by Triton's own launcher."""

    function, packed_metadata = "function", "metadata"

    def __init__(self) -> None:
        self.launches: list[Any] = []
        self.hooked: list[Any] = []

    def __getitem__(self, grid: Any) -> Any:
        return lambda *arguments: self.hooked.append((grid, arguments))

    def run(self, x: int, y: int, z: int, stream: int, *arguments: Any) -> None:
        assert (stream, *arguments[:5]) == (STREAM, "function", "metadata", None, None, None)
        self.launches.append(((x, y, z), arguments[5:]))


class Compiler:
    """Remembers what it was compiled for; every form is a new one."""

    def __init__(self) -> None:
        self.compiled: list[tuple[Compiled, dict[str, Any]]] = []

    def __getitem__(self, grid: Any) -> Any:
        def compile_and_run(*_: Any, **options: Any) -> Compiled:
            self.compiled.append((Compiled(), options))
            return self.compiled[-1][0]

        return compile_and_run


@pytest.fixture
def compiler(monkeypatch) -> Compiler:
    monkeypatch.setattr(module, "_INTERPRETED", False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(module, "raw_stream", lambda device: STREAM)
    return Compiler()


def one(a, size: tl.constexpr, flag: tl.constexpr): ...
def two(a, b, size: tl.constexpr, flag: tl.constexpr): ...
def four(a, b, c, d, size: tl.constexpr, flag: tl.constexpr): ...


def kernel_of(compiler: Compiler, num_arguments: int = 1) -> Kernel:
    kernel = Kernel({1: one, 2: two, 4: four}[num_arguments])
    kernel._jit = compiler
    return kernel


MEMORY = torch.zeros(64, dtype=torch.float32)
OPTIONS = {"flag": True, "size": 8, "num_warps": 1}


def test_a_form_is_compiled_once_and_then_launched_by_address(compiler) -> None:
    kernel = kernel_of(compiler, 4)
    for values in (MEMORY[:16], MEMORY[16:]):
        kernel[(3, 2)](values, 48, None, (values, 5), **OPTIONS)
    [(compiled, options)] = compiler.compiled
    assert options == {**OPTIONS, "enable_fp_fusion": False}
    address = MEMORY[16:].data_ptr()
    # constants in the order of the parameters
    assert compiled.launches == [((3, 2, 1), (address, 48, None, (address, 5), 8, True))]


def test_hooks_of_triton_see_every_launch(compiler, monkeypatch) -> None:
    kernel = kernel_of(compiler)
    kernel[(3,)](MEMORY, **OPTIONS)
    monkeypatch.setattr(module._hooks, "launch_enter_hook", lambda metadata: None)
    kernel[(3,)](MEMORY, **OPTIONS)
    [(compiled, _)] = compiler.compiled
    assert compiled.launches == []
    assert compiled.hooked == [((3, 1, 1), (MEMORY.data_ptr(), 8, True))]


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
def test_another_form_is_compiled_anew(compiler, first, second) -> None:
    kernel = kernel_of(compiler, len(first))
    for arguments in (first, second, first, second):
        kernel[(3,)](*arguments, **OPTIONS)
    assert len(compiler.compiled) == 2
    assert [len(compiled.launches) for compiled, _ in compiler.compiled] == [1, 1]


@pytest.mark.parametrize("other", [{"num_warps": 2}, {"size": 4}, {"maxnreg": 128}])
def test_other_options_are_compiled_anew(compiler, other) -> None:
    kernel = kernel_of(compiler)
    kernel[(3,)](MEMORY, **OPTIONS)
    kernel[(3,)](MEMORY, **{**OPTIONS, **other})
    assert len(compiler.compiled) == 2


def test_options_are_told_apart_by_name(compiler) -> None:
    kernel = kernel_of(compiler)
    kernel[(3,)](MEMORY, size=2, flag=1)
    kernel[(3,)](MEMORY, flag=2, size=1)
    assert len(compiler.compiled) == 2


@pytest.mark.parametrize("odd", [1.0, True, "x"])
def test_what_triton_would_take_otherwise_is_refused(compiler, odd) -> None:
    with pytest.raises(TypeError, match="kernels take tensors"):
        kernel_of(compiler)[(3,)](odd, **OPTIONS)


def test_a_constant_by_position_is_refused(compiler) -> None:
    with pytest.raises(TypeError, match="1 arguments go by position, not 2"):
        kernel_of(compiler)[(3,)](MEMORY, 8, flag=True)


def test_constants_before_arguments_are_refused() -> None:
    def mixed(size: tl.constexpr, a): ...

    with pytest.raises(TypeError, match="constants must be the last parameters of mixed"):
        Kernel(mixed)


def test_each_device_has_its_own(compiler, monkeypatch) -> None:
    kernel = kernel_of(compiler)
    kernel[(3,)](MEMORY, **OPTIONS)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    kernel[(3,)](MEMORY, **OPTIONS)
    assert len(compiler.compiled) == 2
