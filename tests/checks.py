"""The checks that many tests share; ``test_checks.py`` plants a fault for each."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor

from tersor.codecs import registry
from tersor.codecs.codec import Codec
from tersor.errors import TersorError
from tersor.types import Bound

_Error = TypeVar("_Error", bound=TersorError)


def assert_within_bound(original: Tensor, decoded: Tensor, bound: float | Bound) -> None:
    """Fail unless ``decoded`` keeps the promise of DESIGN section 3 for ``original``.

    Same shape and dtype; NaN and infinities at the same places with the same sign; every finite
    value within ``bound``, judged in float64 (long double for float64 data) without slack.
    """
    _assert_same_kind(original, decoded)
    finite = torch.isfinite(original)
    assert torch.equal(torch.isnan(original), torch.isnan(decoded)), "NaN made, moved or lost"
    infinite = torch.isinf(original)
    assert torch.equal(infinite, torch.isinf(decoded)), "infinity made, moved or lost"
    assert torch.equal(original[infinite], decoded[infinite]), "infinity with the wrong sign"
    if not finite.any():
        return
    exact, found = _wide(original[finite]), _wide(decoded[finite])
    limit = bound
    if isinstance(bound, Bound):
        limit = bound.resolve(float(exact.min()), float(exact.max()))
    worst = np.abs(found - exact).max()
    # a NaN compares false, so it fails here
    assert worst <= limit, f"error {worst!r} is above the bound {limit!r}"


def assert_bits_equal(expected: Tensor, found: Tensor) -> None:
    """Fail unless both tensors have the same shape, dtype and bytes; NaN equals the same NaN."""
    _assert_same_kind(expected, found)
    same = _bytes(expected) == _bytes(found)
    assert bool(same.all()), f"{int((~same).sum())} of {same.numel()} bytes differ"


def assert_config_roundtrip(codec: Codec) -> None:
    """Fail unless the codec's config, sent through JSON, builds an equal codec of its type."""
    config = codec.to_config()
    rebuilt = registry.from_config(json.loads(json.dumps(config, allow_nan=False)))
    assert type(rebuilt) is type(codec), f"{codec!r} came back as {rebuilt!r}"
    assert rebuilt == codec, f"{codec!r} came back as {rebuilt!r}"
    assert rebuilt.to_config() == config


def assert_rejects(call: Callable[[], object], error: type[_Error]) -> _Error:
    """Fail unless ``call`` raises ``error`` with a message of one line; return the error."""
    with pytest.raises(error) as caught:
        call()
    message = str(caught.value)
    assert message.strip(), f"{error.__name__} without a message"
    assert "\n" not in message, f"{error.__name__} with more than one line: {message!r}"
    return caught.value


def _assert_same_kind(expected: Tensor, found: Tensor) -> None:
    assert found.shape == expected.shape, f"shape {found.shape}, not {expected.shape}"
    assert found.dtype == expected.dtype, f"{found.dtype}, not {expected.dtype}"


def _wide(x: Tensor) -> np.ndarray:
    if x.dtype == torch.float64:
        return x.cpu().numpy().astype(np.longdouble)
    return x.cpu().double().numpy()


def _bytes(x: Tensor) -> Tensor:
    if x.numel() == 0:
        # torch refuses to reinterpret an empty tensor whose stride is 0
        return torch.zeros(0, dtype=torch.uint8)
    return x.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
