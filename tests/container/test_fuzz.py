"""Whatever is done to a file, reading it ends in tensors or in one of three errors."""

from __future__ import annotations

import io
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tersor.container import Reader
from tests.fuzz.fuzz_reader import target
from tests.fuzz.mutation import Choices, mutate, read_or_refuse, seed_files

# kernels are compiled by then, so a slow example is a hang in the making
bounded = settings(
    max_examples=400,
    deadline=timedelta(seconds=10),
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.fixture(scope="module", autouse=True)
def compiled_kernels():
    assert all(map(read_or_refuse, seed_files()))


@bounded
@given(st.binary(min_size=8, max_size=64))
def test_damaged_files_give_tensors_or_refusals(choices):
    read_or_refuse(mutate(Choices(choices)))


@bounded
@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(data):
    assert not read_or_refuse(data)
    assert not read_or_refuse(b"\x89tersor\n\1\0\0\0\0\0\0\0" + data)


def test_the_fuzzer_gets_past_the_checksums():
    damaged = [mutate(Choices(bytes([0, kind, *range(60)]))) for kind in range(8)]
    opened = 0
    for data in damaged:
        try:
            with Reader(io.BytesIO(data)) as reader:
                reader.verify()
        except ValueError:
            continue
        opened += 1
    assert opened >= 3


def test_the_atheris_target_runs():
    target(b"\x89tersor\n")
    target(bytes(64))
