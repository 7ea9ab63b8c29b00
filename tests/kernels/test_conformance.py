"""Every backend of every operation gives the reference's bytes, on every shared input."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import pytest
import torch

from tersor.errors import CorruptDataError
from tersor.kernels import operations
from tersor.kernels.batch.encoded_list import (
    EncodedList,
    Undecoded,
    finish_decoding,
    settled,
)
from tersor.kernels.group.masks.reference import MaskedGroups
from tersor.kernels.group.rms.layout import RmsCodes
from tersor.kernels.quantize.body import Body
from tersor.kernels.runtime import threads
from tersor.kernels.runtime.op import BACKENDS, COMPOSED, Op, use_backend
from tersor.types import FLOAT_DTYPES
from tests.checks import assert_bits_equal
from tests.kernels import batch_cases, group_cases
from tests.kernels.cases import RARE, Out, fresh
from tests.triton_device import INTERPRETED

DEVICES = {"reference": "cpu", "cpu": "cpu", "gpu": "cpu" if INTERPRETED else "cuda"}
NUM_THREADS = {"cpu": (1, 2)}
MAX_INTERPRETED_VALUES = 1100
"""The interpreter takes milliseconds per program: a little more than one tile must do there."""
MAX_INTERPRETED_CASES = 16


WITH_RARE_CASES = (
    "encode_streams",
    "group_quantize",
    "group_dequantize",
    "group_dequantize_sum_quantize",
)
OPS = operations()
CASES = group_cases.CASES | batch_cases.CASES


def _matrix() -> Iterator[Any]:
    for name, op in OPS.items():
        for backend in BACKENDS:
            if backend not in op.targets and COMPOSED not in op.targets:
                continue
            needs_gpu = DEVICES[backend] == "cuda"
            marks = [pytest.mark.gpu] if needs_gpu else []
            for dtype in CASES[name][1] if name in CASES and backend != "reference" else ():
                label = f"{name}-{backend}-{str(dtype).removeprefix('torch.')}"
                yield pytest.param(op, backend, dtype, id=label, marks=marks)


def test_every_operation_has_cases():
    assert len(OPS) >= 27, "the walk over tersor.kernels lost operations"
    assert set(OPS) == set(CASES)


def test_every_operation_has_a_reference():
    for op in OPS.values():
        assert {"reference", COMPOSED} & set(op.targets), f"{op.name} has no reference"
        # a composition is as fast as its parts, which this test sees too
        has_twin = COMPOSED in op.targets or len(op.targets) > 1
        assert has_twin, f"{op.name} has no faster twin of its reference"


def _results(op: Op, backend: str, arguments: tuple[Any, ...]) -> list[Any]:
    """Run once; return what the operation returned and wrote, on the CPU."""
    made = [fresh(argument, torch.device(DEVICES[backend])) for argument in arguments]
    with use_backend(backend):
        try:
            returned = op.implementation(backend)(*made)
            if isinstance(returned, Undecoded):
                (encoded,) = (given for given in made if isinstance(given, EncodedList))
                returned = finish_decoding(returned, encoded.payloads(), made[0])
        except CorruptDataError:
            return ["refused"]
        if op.name == "join_frame":
            returned = EncodedList(returned[1], returned[0])
        if isinstance(returned, EncodedList):
            returned = settled([returned])[0].payloads()
    written = [y for y, given in zip(made, arguments, strict=True) if _is_written(given)]
    return list(_leaves((returned, written)))


def _is_written(given: Any) -> bool:
    return isinstance(given, Out) or (isinstance(given, list) and any(map(_is_written, given)))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value.cpu()
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _leaves(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _leaves(getattr(value, field.name))
    else:
        yield value


def assert_same(expected: list[Any], found: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(expected, found, strict=True):
        if isinstance(one, torch.Tensor):
            assert_bits_equal(_one_nan(one), _one_nan(other))
        else:
            assert other == one


def _one_nan(x: torch.Tensor) -> torch.Tensor:
    """Give every NaN the same bits: which ones arithmetic makes depends on the machine."""
    return torch.where(torch.isnan(x), torch.nan, x) if x.dtype in FLOAT_DTYPES else x


def _on_cpu(value):
    if isinstance(value, Body | RmsCodes | MaskedGroups):
        return type(value)(*map(_on_cpu, value))
    if isinstance(value, tuple | list):
        return type(value)(_on_cpu(part) for part in value)
    return value.cpu() if isinstance(value, torch.Tensor) else value


def _encoder(backend: str) -> Callable[[Op], Callable[..., Any]]:
    def encode(op: Op) -> Callable[..., Any]:
        return partial(_encode, op)

    def _encode(op: Op, *arguments: Any) -> Any:
        device = torch.device(DEVICES[backend])
        with use_backend(backend):
            made = op.implementation(backend)(*(fresh(a, device) for a in arguments))
            if isinstance(made, EncodedList):
                made = settled([made])[0].payloads()
        return _on_cpu(made)

    return encode


@pytest.mark.parametrize(("op", "backend", "dtype"), list(_matrix()))
def test_backend_gives_the_bytes_of_the_reference(op, backend, dtype, use_threads, monkeypatch):
    cases = _usual(op, _cases(op, backend, dtype))
    is_interpreted = backend == "gpu" and INTERPRETED
    assert_conforms(
        _some(cases) if is_interpreted else cases, op, backend, use_threads, monkeypatch
    )


# not marked as tests of a GPU, of which -m gpu would run them too
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("name", WITH_RARE_CASES)
def test_rare_cases_give_the_bytes_of_the_reference(name, backend, use_threads, monkeypatch):
    if backend == "gpu" and INTERPRETED:
        pytest.skip("too slow to interpret")
    for dtype in CASES[name][1]:
        cases = [case for case in _cases(OPS[name], backend, dtype) if case[0].startswith(RARE)]
        if cases:
            assert_conforms(cases, OPS[name], backend, use_threads, monkeypatch)


def _usual(op: Op, cases: Iterator[Any]) -> Iterator[Any]:
    for case in cases:
        if case[0].startswith(RARE):
            assert op.name in WITH_RARE_CASES, "no slow test runs them"
        else:
            yield case


def _cases(op: Op, backend: str, dtype: torch.dtype) -> Iterator[Any]:
    builder, _ = CASES[op.name]
    # what the interpreted encoder writes is compared with the reference's bytes by its own cases
    interpreted = backend == "gpu" and INTERPRETED
    names = ("reference",) if interpreted else ("reference", backend)
    return builder(dtype, {name: _encoder(name) for name in names})


def assert_conforms(
    cases: Iterable[Any], op: Op, backend: str, use_threads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_parts = _recorded_parts(monkeypatch)
    num_cases = 0
    for label, arguments in cases:
        num_cases += 1
        expected = _results(op, "reference", arguments)
        for count in NUM_THREADS.get(backend, (1,)):
            use_threads(count)
            try:
                assert_same(expected, _results(op, backend, arguments))
            except AssertionError as error:
                error.add_note(f"{label}, {count} threads")
                raise
    assert num_cases
    # an operation that splits its work must have been seen doing so, where it has the threads
    assert backend not in NUM_THREADS or not num_parts or max(num_parts) >= 2


def _some(cases: Iterator[Any]) -> list[Any]:
    """Return small cases, evenly spread: what a GPU runs in full is too slow to interpret."""
    small = [
        case
        for case in cases
        if max(map(_num_values, case[1]), default=0) <= MAX_INTERPRETED_VALUES
    ]
    # lists that are made for the interpreter, so that every fused kernel is run
    short = [case for case in small if case[0].startswith("short")]
    others = [case for case in small if not case[0].startswith("short")]
    stride = -(-len(others) // MAX_INTERPRETED_CASES)
    return short + others[:: max(1, stride)]


def _num_values(argument: Any) -> int:
    if isinstance(argument, Out):
        return math.prod(argument.shape)
    if isinstance(argument, torch.Tensor):
        # bytes of a body are about as many values
        return argument.numel() // (4 if argument.dtype == torch.uint8 else 1)
    if isinstance(argument, EncodedList):
        return 0
    if isinstance(argument, list | tuple):
        return sum(map(_num_values, argument))
    return 0


def _recorded_parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which every use of threads will add its number of parts."""
    num_parts: list[int] = []
    run = threads.run

    def recording(function: Any, parts: Any) -> list[Any]:
        num_parts.append(len(parts))
        return run(function, parts)

    monkeypatch.setattr(threads, "run", recording)
    return num_parts


def test_a_changed_bit_is_found():
    one = [torch.arange(5.0), 3]
    other = [torch.arange(5.0), 3]
    assert_same(one, other)
    other[0][4] = torch.nextafter(other[0][4], torch.tensor(9.0))
    with pytest.raises(AssertionError, match="bytes differ"):
        assert_same(one, other)
    with pytest.raises(AssertionError):
        assert_same(one, [torch.arange(5.0), 4])
