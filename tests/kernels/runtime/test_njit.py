"""Kernels compile and run also where nothing can be cached."""

from __future__ import annotations

import numba
import pytest
from numba.core import caching

from tersor.kernels.runtime.cpu.intrinsics import njit


def twice(x: int) -> int:
    return 2 * x


def test_a_place_that_cannot_be_written_to_costs_the_cache_alone(monkeypatch):
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="cannot cache"):
        numba.njit(cache=True)(twice)
    assert njit(nogil=True, cache=True)(twice)(21) == 42


def test_other_errors_of_the_compiler_are_not_hidden(monkeypatch):
    def broken(**options):
        raise RuntimeError("something else")

    monkeypatch.setattr(numba, "njit", broken)
    with pytest.raises(RuntimeError, match="something else"):
        njit(cache=True)(twice)
