"""Which codec and bound a table's chunks get, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from tersor.codecs import create, get
from tersor.codecs.bounded import BoundedCodec
from tersor.codecs.codec import Codec
from tersor.errors import SpecError
from tersor.policy import AdaptiveBounds, Choice, ClassBounds, Decay, choose
from tersor.types import Bound

_ANY_BOUND: Final = Bound.relative(0.03)
_SAMPLE_ROWS: Final = 4096
"""Rows per table that codecs are tried on."""
CANDIDATES: Final = ("rows", "flat", "huffman", "raw")
"""Codecs that ``codec="auto"`` chooses from on a CPU, all within the bound; ``rows`` and ``huffman``
give way to their rANS forms on CUDA."""
_ON_CUDA: Final = {"huffman": "ans"}
"""Codecs whose place others take on CUDA; options of a codec are its own matter there."""


def make_codec(spec: str | Codec, device: torch.device) -> Codec:
    """Return a codec by its id, in the form that is fast on a device; a codec stays as it is.

    Bounded codecs get a bound that means nothing: the policy of the rows replaces it.

    Raises:
        UnknownCodecError: no codec has that id.
        SpecError: the codec only chooses another one.
    """
    if isinstance(spec, Codec):
        codec = spec
    else:
        name = _ON_CUDA.get(spec, spec) if device.type == "cuda" else spec
        bound = {"bound": _ANY_BOUND} if get(name).takes_bound() else {}
        codec = create(name, device=device, **bound)
    if not codec.writes_payloads:
        raise SpecError(f"codec {codec.codec_id!r} cannot be sent with; use codec='auto' by name")
    return codec


def make_backward(spec: str | Codec, device: torch.device) -> Codec:
    """Return the codec of gradients by its id, or as it is.

    Raises:
        UnknownCodecError: no codec has that id.
        SpecError: the codec only chooses another one, or nobody says within which bound.
    """
    # what only chooses another codec is refused below
    if isinstance(spec, str) and get(spec).takes_bound() and get(spec).writes_payloads:
        raise SpecError(
            f"backward={spec!r} does not say within which error; give a codec with a bound, as in "
            f"tersor.create({spec!r}, bound=...), or one of fixed rate such as 'half' or 'group8'"
        )
    return make_codec(spec, device)


def check_bound_is_used(codec: str | Codec, bounds: AdaptiveBounds | Bound | float | None) -> None:
    """Raise ``SpecError`` for a codec whose own bound the default ones would silently replace."""
    if bounds is None and isinstance(codec, BoundedCodec):
        own = codec.bound
        raise SpecError(
            f"codec {codec.codec_id!r} has a bound of its own, but rows get their bounds from "
            f"bounds=; give bounds=Bound.{own.kind}({own.value}) to keep it, or "
            f"codec={codec.codec_id!r} for the default bounds"
        )


def as_policy(bounds: AdaptiveBounds | Bound | float | None) -> Any:
    """Return what gives each table its bound: a policy, one bound, or a relative one as a number.

    None stands for the default classes without decay.
    """
    if bounds is None:
        return AdaptiveBounds(decay=Decay.off())
    if isinstance(bounds, AdaptiveBounds):
        return bounds
    if isinstance(bounds, Bound):
        return _OneBound(bounds)
    return AdaptiveBounds(bounds=ClassBounds(bounds, bounds, bounds), decay=Decay.off())


@dataclass(frozen=True, slots=True)
class _OneBound:
    """The same bound for every table and iteration."""

    value: Bound

    def bound(self, table: int, iteration: int) -> Bound:
        """See ``AdaptiveBounds.bound``."""
        del table, iteration
        return self.value


@dataclass(slots=True)
class CodecPlan:
    """The codec of every table, chosen once or by measurement while training.

    Attributes:
        candidates: codecs to choose from; one means no choice.
        bounds: per table and iteration; codecs without a bound do not need them.
        bandwidth_gbps: of the network, 10**9 bytes per second, that speed-ups are predicted for.
        every: iterations between two looks at a table; at each, one table is measured.
        choices: the last choice per table.
    """

    candidates: tuple[Codec, ...]
    bounds: AdaptiveBounds
    bandwidth_gbps: float = 1.25
    every: int = 1000
    choices: dict[int, Choice] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a plan without codecs, or one that cannot choose between them."""
        if not self.candidates:
            raise SpecError("an exchange needs at least one codec")
        if self.every < 1:
            raise SpecError(f"codecs are looked at every 1 or more iterations, not {self.every}")
        if not 0 < self.bandwidth_gbps < math.inf:
            raise SpecError(
                f"the bandwidth must be above 0 GB/s and finite, not {self.bandwidth_gbps}"
            )

    def terms(self) -> str:
        """Return what ranks must agree on, the same text for the same plan."""
        bounds: Any = self.bounds
        if isinstance(bounds, AdaptiveBounds):
            # sets that are equal may still be written in different order
            bounds = (sorted(bounds.tight), sorted(bounds.loose), bounds.bounds, bounds.decay)
        return repr((self.candidates, bounds, float(self.bandwidth_gbps), self.every))

    def codec(self, table: int, iteration: int) -> Codec:
        """Return the codec of a table with its bound at an iteration."""
        found = self.choices.get(table)
        chosen = self.candidates[0] if found is None else self.candidates[_place(found)]
        return self._bounded(chosen, table, iteration)

    def _bounded(self, codec: Codec, table: int, iteration: int) -> Codec:
        if not isinstance(codec, BoundedCodec):
            return codec
        return replace(codec, bound=self.bounds.bound(table, iteration))

    def look(self, tables: Sequence[int], rows: Sequence[torch.Tensor], iteration: int) -> None:
        """Measure the codecs on the tables whose turn it is.

        All tables in the first iteration; then one at a time, so that each is seen every
        ``every`` iterations or so and a look costs next to nothing.
        """
        if len(self.candidates) < 2 or not tables:
            return
        if self.choices:
            gap = max(1, self.every // len(tables))
            if iteration % gap:
                return
            chosen = [(iteration // gap) % len(tables)]
        else:
            chosen = list(range(len(tables)))
        for k in chosen:
            sample = rows[k].detach()[:_SAMPLE_ROWS]
            if sample.numel():
                table = tables[k]
                codecs = [self._bounded(codec, table, iteration) for codec in self.candidates]
                self.choices[table] = choose(sample, codecs, self.bandwidth_gbps)


def _place(choice: Choice) -> int:
    """Return which of the candidates was the best."""
    return next(k for k, trial in enumerate(choice.trials) if trial is choice.best)
