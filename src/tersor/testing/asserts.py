"""Assertions about tensors and codecs; each function raises ``AssertionError`` on failure."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tersor.codecs import Codec, registry
from tersor.raw_bytes import as_bytes
from tersor.types import Bound


def require(holds: bool, problem: str) -> None:
    """Raise ``AssertionError`` unless the condition holds, under ``-O`` too."""
    if not holds:
        raise AssertionError(problem)


def assert_within_bound(original: Tensor, decoded: Tensor, bound: float | Bound) -> None:
    """Fail unless ``decoded`` satisfies an error bound for ``original``.

    Shape and dtype must be equal, NaN and infinities at the same positions, infinities with the same
    sign. Every finite value must lie within ``bound``, compared in float64 (long double for float64
    data) without tolerance.
    """
    _assert_same_kind(original, decoded)
    finite, infinite = torch.isfinite(original), torch.isinf(original)
    require(torch.equal(torch.isnan(original), torch.isnan(decoded)), "NaN made, moved or lost")
    require(torch.equal(infinite, torch.isinf(decoded)), "infinity made, moved or lost")
    require(torch.equal(original[infinite], decoded[infinite]), "infinity with the wrong sign")
    if not finite.any():
        return
    exact, found = _wide(original[finite]), _wide(decoded[finite])
    limit = bound
    if isinstance(bound, Bound):
        limit = bound.resolve(float(exact.min()), float(exact.max()))
    worst = np.abs(found - exact).max()
    # a NaN compares false, so it fails
    require(bool(worst <= limit), f"error {worst!r} is above the bound {limit!r}")


def assert_bits_equal(expected: Tensor, found: Tensor) -> None:
    """Fail unless both tensors have the same shape, dtype and bytes; NaNs are compared by their bits."""
    _assert_same_kind(expected, found)
    same = as_bytes(expected.detach().cpu()) == as_bytes(found.detach().cpu())
    require(bool(same.all()), f"{int((~same).sum())} of {same.numel()} bytes differ")


def assert_config_roundtrip(codec: Codec) -> None:
    """Fail unless the codec's config, after a JSON round trip, builds an equal codec of the same class.

    The class must be registered, because a file identifies a codec by its config.
    """
    config = codec.to_config()
    rebuilt = registry.from_config(json.loads(json.dumps(config, allow_nan=False)))
    require(type(rebuilt) is type(codec), f"{codec!r} came back as {rebuilt!r}")
    require(rebuilt == codec, f"{codec!r} came back as {rebuilt!r}")
    require(rebuilt.to_config() == config, f"{codec!r} came back with another config")


def _assert_same_kind(expected: Tensor, found: Tensor) -> None:
    require(found.shape == expected.shape, f"shape {found.shape}, not {expected.shape}")
    require(found.dtype == expected.dtype, f"{found.dtype}, not {expected.dtype}")


def _wide(x: Tensor) -> np.ndarray[Any, Any]:
    if x.dtype == torch.float64:
        return x.cpu().numpy().astype(np.longdouble)
    return x.cpu().double().numpy()
