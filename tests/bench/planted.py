"""Codecs with known behaviour, to see what the suite makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from tersor.types import Bound
from tests.one_by_one import OneByOne


@dataclass(frozen=True, kw_only=True, slots=True)
class Exact(OneByOne):
    """Keeps any bound by storing the values."""

    codec_id: ClassVar[str] = "test-exact"
    guarantee: ClassVar[str] = "bit-exact"
    bound: Bound

    def write(self, x: torch.Tensor, error_bound: float | None) -> torch.Tensor:
        return x.reshape(-1).view(torch.uint8).clone()

    def read(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        out.view(-1).view(torch.uint8).copy_(payload)

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        return torch.Size(shape).numel() * dtype.itemsize


@dataclass(frozen=True, kw_only=True, slots=True)
class JustOver(Exact):
    """Breaks the bound in one value, by the least that float32 can show."""

    codec_id: ClassVar[str] = "test-just-over"

    def read(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        Exact.read(self, payload, out)
        bound = self.bound.value * float(out.max() - out.min())
        out.view(-1)[0] += bound * (1 + 1e-5)


@dataclass(frozen=True, kw_only=True, slots=True)
class Idle(Exact):
    """Decodes nothing and leaves what the memory held."""

    codec_id: ClassVar[str] = "test-idle"

    def read(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        pass


@dataclass(frozen=True, kw_only=True, slots=True)
class IdleRate(OneByOne):
    """The same, of a codec that takes no bound."""

    codec_id: ClassVar[str] = "test-idle-rate"
    guarantee: ClassVar[str] = "fixed-rate"

    def write(self, x: torch.Tensor, error_bound: float | None) -> torch.Tensor:
        return torch.zeros(1, dtype=torch.uint8)

    def read(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        pass

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        return 1
