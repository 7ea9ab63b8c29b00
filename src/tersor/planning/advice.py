"""Advise on the best method of taking a step, at which bandwidths that changes, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tersor.planning.model import LEAST_BITS, MOST_BITS, Prediction, StepModel
from tersor.planning.units import bandwidth_words

_LEAST_GAIN: Final = 1.02
"""The advice marks smaller speedups as too small for this model."""


@dataclass(frozen=True, slots=True)
class Advice:
    """The best method at one number of ranks and one bandwidth.

    Attributes:
        best: the method with the shortest step, among those that broke no bound.
        baseline: the method without compression.
        next_best: the second best; None if there is only one.
        best_bounded: the best method that keeps a bound, if ``best`` promises none; else None.
        bits_per_s: the bandwidth in bits per second; see ``Cluster.bandwidth``.
        reason: one sentence that explains the choice.
    """

    best: Prediction
    baseline: Prediction
    next_best: Prediction | None
    best_bounded: Prediction | None
    bits_per_s: float
    reason: str

    @property
    def step_speedup(self) -> float:
        """The baseline's step time divided by the best method's."""
        return self.baseline.step_s / self.best.step_s


@dataclass(frozen=True, slots=True)
class Turn:
    """A bandwidth above which another method is best, and the reason."""

    bits_per_s: float
    before: str
    after: str
    reason: str


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f} ms" if seconds >= 0.0995 else f"{seconds * 1e3:.3g} ms"


def advise(model: StepModel, num_ranks: int) -> Advice:
    """Return the best method and the reason."""
    found = sorted(model.eligible(num_ranks), key=lambda one: one.step_s)
    baseline = next(one for one in found if one.name == model.baseline)
    best, next_best = found[0], found[1] if len(found) > 1 else None
    bits = model.cluster.bandwidth(num_ranks)
    inside = " within a node" if 1 < num_ranks <= model.cluster.ranks_per_node else ""
    place = f"{num_ranks:,} ranks at {bandwidth_words(bits)}{inside}"
    bounded = next(one for one in found if model.methods[one.name])
    if best is baseline:
        words = f"{place}: use {model.baseline}; {_against(model, baseline, next_best)}"
    else:
        words = f"{place}: use {best.name}; {_in_favour(best, baseline)}"
        if bounded is not best and bounded is not baseline:
            words += (
                f"; of those that keep a bound {bounded.name} is best, "
                f"{_ms(bounded.step_s - best.step_s)} behind"
            )
    return Advice(best, baseline, next_best, None if bounded is best else bounded, bits, words)


def _in_favour(best: Prediction, baseline: Prediction) -> str:
    saved_s, cost_s = baseline.payload_s - best.payload_s, best.coding_s - baseline.coding_s
    cost = f"costs {_cost(best, baseline)}" if cost_s > 0 else "its coding costs no more"
    computing_s = baseline.compute_s - best.compute_s
    computing = f" and {_ms(computing_s)} of computing" if computing_s > 0 else ""
    gain = baseline.step_s / best.step_s
    doubt = ", a difference too small for this model" if gain < _LEAST_GAIN else ""
    return (
        f"it saves {_ms(saved_s)} of sending{computing} per step and {cost}, so a step takes "
        f"{_ms(best.step_s)} instead of {_ms(baseline.step_s)} ({gain:.2f} x{doubt})"
    )


def _against(model: StepModel, baseline: Prediction, other: Prediction | None) -> str:
    if other is None:
        return "there is nothing else to choose from"
    names = (baseline.name, other.name)
    found = model.changes(names, baseline.num_ranks, LEAST_BITS, MOST_BITS)
    places = [
        f"{'below' if before == other.name else 'above'} {bandwidth_words(bits)}"
        for bits, before, _ in found
    ]
    where = f"pays only {' and '.join(places)}" if places else "never pays here"
    return (
        f"payloads take {_ms(baseline.payload_s)} to send, and the best codec, "
        f"{other.name}, would save {_ms(baseline.payload_s - other.payload_s)} of it for "
        f"{_cost(other, baseline)}: it {where}"
    )


def _cost(found: Prediction, baseline: Prediction) -> str:
    cost_s = found.coding_s - baseline.coding_s
    return f"{_ms(cost_s)} of coding{agreement_words(found, baseline)}"


def agreement_words(found: Prediction, baseline: Prediction) -> str:
    """Say how much of the extra coding time is spent on exchanging sizes; empty if that is little."""
    cost_s, sizes_s = found.coding_s - baseline.coding_s, found.sizes_s - baseline.sizes_s
    return f", {_ms(sizes_s)} of it to agree on sizes" if sizes_s > 0.1 * cost_s > 0 else ""


def turns(model: StepModel, num_ranks: int, low: float, high: float) -> list[Turn]:
    """Return where the best method changes between two bandwidths, in ascending order."""
    names = [one.name for one in model.eligible(num_ranks)]
    found = model.changes(names, num_ranks, low, high)
    return [_turn(model.at_bandwidth(bits, num_ranks), num_ranks, *pair) for bits, *pair in found]


def _turn(model: StepModel, num_ranks: int, before: str, after: str) -> Turn:
    left, right = model.predict(before, num_ranks), model.predict(after, num_ranks)
    bits = model.cluster.bandwidth(num_ranks)
    coding_s = left.coding_s - right.coding_s
    why = f"it codes {_ms(coding_s)} faster, and the bytes it sends more take less"
    if coding_s < 0:
        sending_s = left.payload_s - right.payload_s
        why = f"it sends {_ms(sending_s)} faster, and codes {_ms(-coding_s)} longer"
    return Turn(
        bits, before, after, f"from {bandwidth_words(bits)} on {after} beats {before}: {why}"
    )
