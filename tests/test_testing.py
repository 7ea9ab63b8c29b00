"""The check for plug-ins finds each planted fault, under the name of the promise it breaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pytest
import torch

from tersor import Bound, Codec, EncodedList
from tersor.codecs import registry
from tersor.codecs.raw import Raw
from tersor.errors import CorruptDataError
from tersor.testing import check_codec
from tests.one_by_one import OneByOne, decode_one

BOUND = Bound.absolute(0.5)
TOP = 3e38


def raw_bytes(x: torch.Tensor) -> torch.Tensor:
    return Raw().pack_chunk(x)


@dataclass(frozen=True, kw_only=True)
class Honest(OneByOne):
    """Keep float32 values exactly, whatever error is allowed."""

    codec_id: ClassVar[str] = "test-honest"
    guarantee: ClassVar[str] = "every finite value within the bound"
    bound: Bound = BOUND

    def supports(self, dtype: torch.dtype) -> bool:
        return dtype == torch.float32

    def resolve_bound(self, x: torch.Tensor) -> float:
        finite = x[x.isfinite()].double()
        return self.bound.resolve(*finite.aminmax()) if finite.numel() else 0.0

    def write(self, x: torch.Tensor, error_bound: float | None) -> torch.Tensor:
        return raw_bytes(x)

    def read(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        decode_one(Raw(), payload, out)

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        return Raw().max_nbytes(shape, dtype)


class BreaksItsBound(Honest):
    def read(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        Honest.read(self, payload, out)
        # half a percent over what was allowed, at one value
        out.view(-1)[:1] += 0.5025 if out.numel() > 9 else 0.0


class LosesNan(Honest):
    def read(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        Honest.read(self, payload, out)
        out.nan_to_num_(nan=0.0, posinf=torch.inf, neginf=-torch.inf)


class LosesInfinity(Honest):
    def read(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        Honest.read(self, payload, out)
        out.clamp_(-TOP, TOP)


class IgnoresBoundsOfACall(Honest):
    def encode(
        self, xs: Sequence[torch.Tensor], bounds: Sequence[Bound] | None = None
    ) -> EncodedList:
        # right for its own bound alone: multiples of half of it
        step = self.bound.value
        return Honest.encode(self, [(x / step).round() * step if step else x for x in xs], None)

    def resolve_bound(self, x: torch.Tensor) -> float:
        return (
            self.bound.resolve(*x[x.isfinite()].double().aminmax()) if x.isfinite().any() else 0.0
        )


class PromisesLess(Honest):
    def resolve_bound(self, x: torch.Tensor) -> float:
        return 2 * Honest.resolve_bound(self, x)


class WritesMore(Honest):
    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        return max(0, Honest.max_nbytes(self, shape, dtype) - 1)


class IsNotFixed(Honest):
    size_kind: ClassVar[Literal["fixed", "bounded"]] = "fixed"

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        return Honest.max_nbytes(self, shape, dtype) + 1


class LeavesTheLast(Honest):
    def read(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        whole = torch.empty_like(out)
        Honest.read(self, payload, whole)
        out.view(-1)[:-1] = whole.view(-1)[:-1]


class RollsDice(Honest):
    def write(self, x: torch.Tensor, error_bound: float | None) -> torch.Tensor:
        return Honest.write(self, x + torch.rand(x.shape) * 1e-30, error_bound)


class ChangesItsInput(Honest):
    def write(self, x: torch.Tensor, error_bound: float | None) -> torch.Tensor:
        x += 1
        return Honest.write(self, x, error_bound)


class Stumbles(Honest):
    def write(self, x: torch.Tensor, error_bound: float | None) -> torch.Tensor:
        if x.numel() == 0:
            raise IndexError("index out of range")
        return Honest.write(self, x, error_bound)


class ReadsAnything(Honest):
    size_kind: ClassVar[Literal["fixed", "bounded"]] = "fixed"

    def read(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        room = torch.zeros(out.numel() * 4, dtype=torch.uint8)
        room[: payload.numel()] = payload[: room.numel()]
        Honest.read(self, room, out)


class FallsOverBytes(Honest):
    def read(self, payload: torch.Tensor, out: torch.Tensor) -> None:
        out.view(-1).copy_(payload.clone().view(torch.float32))


class ReadsNothingAsZeros(ReadsAnything):
    size_kind: ClassVar[Literal["fixed", "bounded"]] = "bounded"


class DecodesNan(Raw):
    codec_id: ClassVar[str] = "test-nan"

    def decode(self, encoded: EncodedList, outs: Sequence[torch.Tensor]) -> None:
        Raw.decode(self, encoded, outs)
        (out,) = outs
        if out.dtype.is_floating_point or out.dtype.is_complex:
            out.fill_(torch.nan)


@dataclass(frozen=True, kw_only=True)
class NeedsSlack(Honest):
    def __post_init__(self) -> None:
        if self.bound == Bound.absolute(0.0):
            raise ValueError("the bound must be positive")


class DoesNotKnowDtypes(Honest):
    def supports(self, dtype: torch.dtype) -> bool:
        return {torch.float32: True}[dtype]


class ForgetsItsBound(Honest):
    def to_config(self) -> dict[str, Any]:
        return {**Honest.to_config(self), "bound": BOUND.to_config()}


class NeedsTuples(Honest):
    def to_config(self) -> dict[str, Any]:
        return {**Honest.to_config(self), "bound": BOUND}


FAULTS = {
    BreaksItsBound: ("bound holds", "is above the bound 0.5"),
    LosesNan: ("NaN and infinities stay", "a NaN came back as a number"),
    LosesInfinity: ("NaN and infinities stay", "an infinity came back finite"),
    IgnoresBoundsOfACall: ("lists keep their bounds", "is above the bound"),
    PromisesLess: ("bound holds", "resolve_bound says 1.0"),
    WritesMore: ("size as max_nbytes says", "max_nbytes says"),
    IsNotFixed: ("size as max_nbytes says", "size_kind"),
    LeavesTheLast: ("decoding fills out", "bytes differ"),
    RollsDice: ("same bytes every time", "bytes differ"),
    ChangesItsInput: ("same bytes every time", "bytes differ"),
    Stumbles: ("size as max_nbytes says", "empty of float32, Bound"),
    ReadsAnything: ("other bytes are refused", "raise CorruptDataError"),
    FallsOverBytes: ("other bytes are refused", "it raised RuntimeError"),
    ReadsNothingAsZeros: ("other bytes are refused", "0 bytes instead of 4 are decoded"),
    NeedsSlack: ("bound holds", "it raised ValueError: the bound must be positive"),
    DoesNotKnowDtypes: ("any layout", "it raised KeyError"),
    ForgetsItsBound: ("config goes through JSON", "came back as"),
    NeedsTuples: ("config goes through JSON", "it raised TypeError"),
}


def registered(monkeypatch: pytest.MonkeyPatch, kind: type[Codec]) -> type[Codec]:
    monkeypatch.setitem(registry._codecs, kind.codec_id, kind)
    return kind


def test_an_honest_codec_passes(monkeypatch) -> None:
    check_codec(registered(monkeypatch, Honest)())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_each_planted_fault_is_named(fault, monkeypatch) -> None:
    name, words = FAULTS[fault]
    bound = Bound.absolute(0.25) if fault is ForgetsItsBound else BOUND
    codec = registered(monkeypatch, fault)(bound=bound)
    with pytest.raises(AssertionError, match="breaks its promises") as caught:
        check_codec(codec)
    (problem,) = [line for line in str(caught.value).splitlines() if line.startswith(f"{name}: ")]
    assert words in problem


def test_a_codec_that_decodes_only_nan_fails_on_finite_values(monkeypatch) -> None:
    with pytest.raises(AssertionError, match=r"small values stay finite: .* came back as NaN or"):
        check_codec(registered(monkeypatch, DecodesNan)())


def test_a_codec_is_only_asked_for_the_dtypes_it_claims(monkeypatch) -> None:
    class OnlyHalf(Honest):
        def supports(self, dtype: torch.dtype) -> bool:
            return dtype == torch.float16

        def write(self, x: torch.Tensor, error_bound: float | None) -> torch.Tensor:
            if x.dtype != torch.float16:
                raise CorruptDataError("not mine")
            return raw_bytes(x)

    check_codec(registered(monkeypatch, OnlyHalf)())
