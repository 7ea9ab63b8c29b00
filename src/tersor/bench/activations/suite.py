"""The ``activations`` suite: training steps with different methods of holding what backward needs.

Before a model is measured, a lossless codec must reproduce the gradients of the exact step bit for bit. All
contenders then take the same step of the same model in turn, round after round. On CUDA, memory is measured by
the allocator; on the CPU, every contender takes a step in a separate process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final

import torch

from tersor.bench.activations import memory_child
from tersor.bench.activations.case import Forward
from tersor.bench.activations.cases import CasePlan
from tersor.bench.activations.contenders import (
    DEFAULT,
    EXACT,
    LOSSLESS,
    SMOKE,
    Contender,
    make_contender,
)
from tersor.bench.activations.measuring import (
    MALLOC_ENVIRONMENT,
    Held,
    are_equal,
    counted,
    exact_gradients,
    step_memory,
    weights_among,
)
from tersor.bench.activations.torch_methods import many_compilations
from tersor.bench.core import machine
from tersor.bench.core.activation_facts import ActivationFacts, SavedBytes
from tersor.bench.core.blocks import Estimate, Memory, Quality
from tersor.bench.core.outcome import SuiteOutcome, ignore
from tersor.bench.core.resident import can_measure_resident, child_report
from tersor.bench.core.rows import ActivationRow, ResultRow, row_identity
from tersor.bench.core.timing import Clock, HostClock, LoopClock, Percentiles, measure_interleaved
from tersor.errors import BackendUnavailableError, SpecError
from tersor.policy.similarity import Similarity, gradient_similarity

SUITE: Final = "activations"
_NO_TIME: Final = Percentiles(0.0, 0.0, 0.0)
_STEPS_PER_LOOP: Final = 5
"""Consecutive steps that are timed together on a GPU, after one that is not timed. In a training the host prepares a step
while the device is still busy with the last one, and finds the caches as its own steps left them: a single step of GPT
125M took 208 ms behind another contender's, and 187 behind its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivationsConfig:
    """What to measure.

    Attributes:
        cases: models and batches, all on one device.
        contenders: names for ``make_contender``; ``exact`` and ``lossless`` are always measured.
        rounds: timed rounds.
    """

    cases: tuple[CasePlan, ...]
    contenders: tuple[str, ...] = DEFAULT
    rounds: int = 7

    def __post_init__(self) -> None:
        """Reject an empty plan, and put ``exact`` and ``lossless`` first."""
        if not self.cases or self.rounds < 1:
            raise SpecError("name at least one model and one round")
        names = [make_contender(name).name for name in self.contenders]
        object.__setattr__(self, "contenders", tuple(dict.fromkeys([EXACT, LOSSLESS, *names])))

    def smoke(self) -> ActivationsConfig:
        """Return a plan that shows in seconds that all runs: tiny models, few contenders, one round."""
        cases = tuple(replace(case, is_smoke=True, batch=2, warm_steps=1) for case in self.cases)
        names = SMOKE if self.contenders == DEFAULT else self.contenders
        return replace(self, cases=cases, rounds=1, contenders=names)


def run_activations(
    config: ActivationsConfig,
    *,
    done: frozenset[str] = frozenset(),
    on_row: Callable[[ResultRow], None] = ignore,
    on_note: Callable[[str], None] = ignore,
    on_case: Callable[[int, int, str], None] = ignore,
) -> SuiteOutcome:
    """Measure everything in ``config``.

    Args:
        config: the plan.
        done: keys of rows that exist already and are not reported again.
        on_row: called with each finished row; write it to disk here.
        on_note: called with one sentence for each fact a reader must know.
        on_case: called with (finished models, all models, label) before each model.
    """
    outcome = SuiteOutcome(done, on_row, on_note)
    contenders = [make_contender(name) for name in config.contenders]
    for number, plan in enumerate(config.cases):
        usable = []
        for one in contenders:
            sentence = one.absence(plan.device)
            if sentence is None:
                usable.append(one)
            else:
                outcome.note(sentence)
        on_case(number, len(config.cases), plan.name)
        if all(outcome.is_done(_identity(plan, one)) for one in usable):
            continue
        # importing dynamo takes seconds
        compiles = any(one.is_compiled for one in usable)
        with many_compilations() if compiles else nullcontext():
            for row in _Bench(plan, outcome).rows(usable, config.rounds):
                if row.key not in done:
                    outcome.add(row)
    on_case(len(config.cases), len(config.cases), "done")
    return outcome


def _identity(plan: CasePlan, contender: Contender) -> dict[str, Any]:
    return row_identity(
        suite=SUITE, codec=contender.name, version=contender.version, spec=dict(contender.options),
        input=plan.name, device=torch.device(plan.device).type, num_values=plan.batch,
        threads=plan.threads or torch.get_num_threads(),
        group=f"batch {plan.batch}, {plan.dtype}, {plan.warm_steps} steps before",
    )  # fmt: skip


@dataclass(slots=True)
class _Taken:
    """Measurements from the first steps of one contender.

    Attributes:
        contender: the contender.
        forward: the forward pass of its steps.
        held: bytes held for backward; None if tensors cannot be observed one by one.
        similarity: similarity of its gradients to the exact ones.
        is_exact: whether its gradients equal the exact ones.
        memory: memory of a step; None if it cannot be measured.
    """

    contender: Contender
    forward: Forward
    held: Held | None
    similarity: Similarity
    is_exact: bool
    memory: Memory | None


class _Bench:
    """The measurements of one model on its batch."""

    def __init__(self, plan: CasePlan, outcome: SuiteOutcome) -> None:
        self.plan, self.outcome, self.case = plan, outcome, plan.make()
        self.exact = exact_gradients(self.case, self.case.model)
        self.saved = counted(self.case, self.case.model)

    def rows(self, contenders: Sequence[Contender], rounds: int) -> Iterator[ActivationRow]:
        """Yield a row per contender that can run, provided that a lossless codec changes nothing."""
        if not self._is_lossless():
            return
        found = [taken for one in contenders if (taken := self._taken(one)) is not None]
        times = measure_interleaved(
            {one.contender.name: partial(self.case.step, one.forward) for one in found},
            device=self.case.device, rounds=rounds, clock=_clock(self.case.device),
        )  # fmt: skip
        by_name = {one.contender.name: one for one in found}
        for one in found:
            yield self._row(one, by_name[EXACT], times[one.contender.name])

    def _is_lossless(self) -> bool:
        """Check the premise of all measurements: a lossless codec does not change any gradient."""
        again = exact_gradients(self.case, self.case.model)
        if not are_equal(self.exact, again):
            self.outcome.note(
                f"{self.plan.name}: two exact steps differ in bits here, so that a lossless codec cannot be "
                "checked by them"
            )
            return True
        forward = make_contender(LOSSLESS).attached(self.case).forward
        if are_equal(self.exact, exact_gradients(self.case, forward)):
            return True
        sentence = f"{self.plan.name} is refused: a lossless codec changes its gradients"
        self.outcome.refusals.append(sentence)
        self.outcome.note(sentence)
        return False

    def _taken(self, contender: Contender) -> _Taken | None:
        """Take the first steps; if the contender cannot run, note the reason and return None."""
        words: Exception
        try:
            return self._first_steps(contender)
        except (BackendUnavailableError, torch.OutOfMemoryError) as error:
            words = error
        except RuntimeError as error:
            # torch raises nothing more specific if it cannot compile or run its own methods
            if contender.is_ours or contender.name == EXACT:
                raise
            words = error
        reason = next(iter(str(words).strip().splitlines()), type(words).__name__)
        self.outcome.note(f"{contender.name} on {self.plan.name} is left out: {reason}")
        return None

    def _first_steps(self, contender: Contender) -> _Taken:
        attached = contender.attached(self.case)
        # deterministic mode would trigger another compilation, and its bits would still differ from eager
        take = self.case.gradients if contender.is_compiled else partial(exact_gradients, self.case)
        gradients = take(attached.forward)
        held = None
        if attached.held is not None:
            held = attached.held()
        elif contender.is_counted:
            held = counted(self.case, attached.forward)
        alike = gradient_similarity(weights_among(self.exact), weights_among(gradients))
        is_exact = are_equal(self.exact, gradients)
        memory = self._memory(contender, attached.forward)
        return _Taken(contender, attached.forward, held, alike, is_exact, memory)

    def _memory(self, contender: Contender, forward: Forward) -> Memory | None:
        if self.case.device.type == "cuda":
            return step_memory(self.case, forward)
        if not can_measure_resident():
            self.outcome.note("held and peak memory of a process can only be measured on Linux")
            return None
        arguments = [json.dumps(asdict(self.plan)), contender.name]
        failed = f"{contender.name} on {self.plan.name} could not be measured"
        return Memory(**child_report(memory_child, arguments, failed, MALLOC_ENVIRONMENT))

    def _row(self, taken: _Taken, exact: _Taken, step_s: Percentiles) -> ActivationRow:
        contender, held = taken.contender, taken.held
        original, encoded = self.saved.nbytes, 0 if held is None else held.nbytes
        if held is None and taken.memory is not None and exact.memory is not None:
            original, encoded = exact.memory.held_nbytes or 0, taken.memory.held_nbytes or 0
        return ActivationRow(
            **_identity(self.plan, contender),
            original_nbytes=original,
            encoded_nbytes=encoded,
            worst_error=None,
            error_bound=None,
            encode_s=_NO_TIME,
            decode_s=_NO_TIME,
            peer=not contender.is_ours,
            quality=Quality(score=Estimate(mean=taken.similarity.score)),
            memory=taken.memory,
            note=contender.note,
            versions=machine.versions(),
            machine=machine.machine(self.case.device),
            activations=self._facts(taken, step_s),
        )

    def _facts(self, taken: _Taken, step_s: Percentiles) -> ActivationFacts:
        held, alike = taken.held, taken.similarity
        saved = None
        if held is not None:
            saved = SavedBytes(
                nbytes=self.saved.nbytes, floats_nbytes=self.saved.floats_nbytes,
                held_nbytes=held.nbytes, held_floats_nbytes=held.floats_nbytes,
            )  # fmt: skip
        return ActivationFacts(
            batch=self.plan.batch,
            dtype=self.plan.dtype,
            warm_steps=self.plan.warm_steps,
            saved=saved,
            step_s=step_s,
            cosine=min(1.0, max(-1.0, alike.cosine)),
            least_score=min(1.0, alike.lowest),
            is_exact=taken.is_exact,
        )


def _clock(device: torch.device) -> Clock:
    """Return the clock for the wall time of a step as a training sees it: on a GPU, one of several in a row."""
    if device.type != "cuda":
        return HostClock()
    return LoopClock(device, num_calls=_STEPS_PER_LOOP, num_before=1)
