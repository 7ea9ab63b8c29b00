"""A codec of the tests' own, so that the container is tested apart from the real codecs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from tersor.codecs import registry
from tersor.codecs.raw import Raw
from tersor.errors import CorruptDataError, SpecError
from tersor.types import Bound
from tests.one_by_one import OneByOne


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounding(OneByOne):
    """Multiples of the step as int32 behind a length; values must be small and finite."""

    codec_id: ClassVar[str] = "test-rounding"
    guarantee: ClassVar[str] = "within the bound"
    bound: Bound
    salt: int = 0

    def __post_init__(self) -> None:
        if self.salt < 0:
            raise SpecError(f"salt must be at least 0, not {self.salt}")

    def resolve_bound(self, x: torch.Tensor) -> float | None:
        finite = x[torch.isfinite(x)].double()
        return self.bound.resolve(float(finite.min()), float(finite.max()))

    def write(self, x: torch.Tensor, error_bound: float | None) -> torch.Tensor:
        assert error_bound is not None
        codes = torch.round(x.double() / error_bound).to(torch.int32).reshape(-1)
        head = torch.tensor([error_bound], dtype=torch.float64)
        return torch.cat([head.view(torch.uint8), codes.view(torch.uint8)])

    def read(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        if payload.numel() != 8 + 4 * out.numel():
            raise CorruptDataError("the number of codes is wrong")
        step = payload[:8].clone().view(torch.float64)
        codes = payload[8:].clone().view(torch.int32)
        out.view(-1).copy_((codes * step).to(out.dtype))

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        return 8 + 4 * torch.Size(shape).numel()


@pytest.fixture
def rounding(monkeypatch):
    """The test codec with an absolute bound, registered for the length of one test."""
    monkeypatch.setitem(registry._codecs, Rounding.codec_id, Rounding)
    return Rounding(bound=Bound.absolute(0.5))


@pytest.fixture
def raw():
    return Raw()
