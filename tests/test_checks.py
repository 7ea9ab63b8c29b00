"""Every shared check fails on the faults it exists for, and passes what is right."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from tersor.codecs import registry
from tersor.codecs.raw import Raw
from tersor.errors import CorruptDataError, SpecError
from tersor.types import FLOAT_DTYPES, Bound
from tests.checks import (
    assert_bits_equal,
    assert_config_roundtrip,
    assert_rejects,
    assert_within_bound,
)
from tests.data import inputs

NAN, INF = math.nan, math.inf


def _fails(check: Any, *args: Any) -> None:
    with pytest.raises(AssertionError):
        check(*args)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_an_exact_copy_is_within_bound_zero(dtype) -> None:
    for x in inputs(dtype).values():
        assert_within_bound(x, x.clone(), 0.0)
        assert_within_bound(x, x.clone(), Bound.relative(0.0))


@pytest.mark.parametrize(
    "decoded",
    [
        pytest.param([1.0, NAN, INF, -INF, 2.0 + 2**-20], id="just-over"),
        pytest.param([1.0, NAN, INF, -INF, NAN], id="nan-made"),
        pytest.param([1.0, 0.0, INF, -INF, 2.0], id="nan-lost"),
        pytest.param([NAN, 1.0, INF, -INF, 2.0], id="nan-moved"),
        pytest.param([1.0, NAN, -INF, -INF, 2.0], id="infinity-sign"),
        pytest.param([1.0, NAN, 3e38, -INF, 2.0], id="infinity-lost"),
        pytest.param([1.0, NAN, INF, -INF, INF], id="infinity-made"),
        pytest.param([1.0, NAN, NAN, -INF, 2.0], id="infinity-to-nan"),
        pytest.param([1.0, NAN, INF, -INF], id="shape"),
    ],
)
def test_a_broken_bound_is_seen(decoded) -> None:
    original = torch.tensor([1.0, NAN, INF, -INF, 2.0])
    just_within = torch.tensor([1.0, NAN, INF, -INF, 2.0 + 2**-21])
    assert_within_bound(original, just_within, 2**-21)
    _fails(assert_within_bound, original, torch.tensor(decoded), 2**-21)


def test_a_changed_dtype_is_seen() -> None:
    x = torch.ones(3)
    _fails(assert_within_bound, x, x.double(), 1.0)
    _fails(assert_bits_equal, x, x.double())


def test_the_bound_has_no_slack_in_the_last_bit() -> None:
    original, decoded = torch.tensor([0.0]), torch.tensor([0.1])
    # float32(0.1) is 0.10000000149, above 0.1
    _fails(assert_within_bound, original, decoded, 0.1)
    assert_within_bound(original, decoded, decoded.item())


@pytest.mark.skipif(
    np.finfo(np.longdouble).eps >= np.finfo(np.float64).eps,
    reason="long double is no wider than float64 on this machine",
)
def test_float64_data_is_judged_in_long_double() -> None:
    # the error is 1 + 2**-60, which float64 rounds to 1
    original = torch.tensor([-(2.0**-60)], dtype=torch.float64)
    decoded = torch.tensor([1.0], dtype=torch.float64)
    _fails(assert_within_bound, original, decoded, 1.0)


def test_a_relative_bound_follows_the_finite_range() -> None:
    original = torch.tensor([0.0, 10.0, INF, NAN])
    assert_within_bound(original, torch.tensor([1.0, 10.0, INF, NAN]), Bound.relative(0.1))
    _fails(assert_within_bound, original, torch.tensor([1.1, 10, INF, NAN]), Bound.relative(0.1))


@pytest.mark.parametrize(
    "found",
    [
        pytest.param([-0.0, 1.0, NAN], id="sign-of-zero"),
        pytest.param([0.0, 1.0 + 2**-23, NAN], id="last-bit"),
        pytest.param([0.0, 1.0, 2.0], id="nan-lost"),
        pytest.param([[0.0, 1.0, NAN]], id="shape"),
    ],
)
def test_a_changed_bit_is_seen(found) -> None:
    expected = torch.tensor([0.0, 1.0, NAN])
    assert_bits_equal(expected, expected.clone())
    _fails(assert_bits_equal, expected, torch.tensor(found))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Levelled(Raw):
    codec_id: ClassVar[str] = "test-levelled"
    level: Any = 3


class _Forgetful(_Levelled):
    codec_id: ClassVar[str] = "test-forgetful"

    def to_config(self) -> dict[str, Any]:
        return {"id": self.codec_id, "version": self.version}


class _Impostor(_Levelled):
    """Answers to another codec's id."""


@pytest.fixture
def registered(monkeypatch) -> None:
    for codec in (_Levelled, _Forgetful):
        monkeypatch.setitem(registry._codecs, codec.codec_id, codec)


@pytest.mark.usefixtures("registered")
def test_a_config_that_loses_its_way_is_seen(monkeypatch) -> None:
    assert_config_roundtrip(_Levelled(level=7))
    assert_config_roundtrip(_Forgetful())
    _fails(assert_config_roundtrip, _Forgetful(level=7))
    # JSON knows lists but no tuples
    _fails(assert_config_roundtrip, _Levelled(level=(1, 2)))
    with pytest.raises(TypeError, match="not JSON serializable"):
        assert_config_roundtrip(_Levelled(level={1, 2}))
    monkeypatch.setitem(registry._codecs, "test-levelled", _Impostor)
    _fails(assert_config_roundtrip, _Levelled(level=7))


def _raise(error: Exception) -> Any:
    def call() -> None:
        raise error

    return call


def test_a_missing_or_poor_refusal_is_seen() -> None:
    error = assert_rejects(_raise(SpecError("a bound must be finite")), SpecError)
    assert str(error) == "a bound must be finite"
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        assert_rejects(lambda: None, SpecError)
    with pytest.raises(CorruptDataError):
        assert_rejects(_raise(CorruptDataError("cut")), SpecError)
    _fails(assert_rejects, _raise(SpecError("")), SpecError)
    _fails(assert_rejects, _raise(SpecError("two\nlines")), SpecError)
