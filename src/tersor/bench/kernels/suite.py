"""The ``kernels`` suite: every codec against its peers, end to end from and to float32.

No speed is reported before the round trip was checked in this process. All candidates of one input
and bound run in turn, each right after a memcpy of the same bytes, so that quotients hold on a
machine whose speed drifts. On CUDA, a large copy is timed in the same rounds, and all calls are timed twice:
in a loop, for a row's own times, and queued ahead by the host. Fused operations come last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from tersor.bench.core.candidate import Candidate, HuffmanCodes
from tersor.bench.core.ceiling import ceiling_of
from tersor.bench.core.inputs import BenchInput
from tersor.bench.core.outcome import SuiteOutcome, ignore
from tersor.bench.core.rows import ResultRow, row_identity
from tersor.bench.core.subject import Subject
from tersor.bench.core.timing import clocks_of, own_stream
from tersor.bench.core.trial import launches_of, time_trials
from tersor.bench.kernels.config import Group, KernelsConfig
from tersor.bench.kernels.operations.plan import INPUT
from tersor.bench.kernels.operations.suite import OperationsRun
from tersor.bench.kernels.variants import make_candidate, takes_bound
from tersor.bench.peers import load_peers
from tersor.errors import BackendUnavailableError
from tersor.types import Bound

_MANY_TENSORS: Final = 64
"""The host takes longer to queue more tensors than this than the clock's default lead lasts."""


def run_kernels(
    config: KernelsConfig,
    *,
    done: frozenset[str] = frozenset(),
    on_row: Callable[[ResultRow], None] = ignore,
    on_note: Callable[[str], None] = ignore,
    on_group: Callable[[int, int, str], None] = ignore,
) -> SuiteOutcome:
    """Measure everything in ``config``.

    Args:
        config: the plan.
        done: keys of rows that exist already (``RowFile.keys``) and are not measured again.
        on_row: called with each finished row; write it to disk here.
        on_note: called with one sentence for each candidate left out or refused.
        on_group: called with (finished groups, all groups, label) before each group starts.

    Returns:
        The new rows, the notes, and the refusals: our codecs that broke a bound.

    Raises:
        SpecError: an input or peer in ``config`` does not exist.
        UnknownCodecError: a codec in ``config`` is not registered.
    """
    groups = config.groups()
    for name in dict.fromkeys(n for group in groups for n in config.codecs_of(group.input)):
        takes_bound(name)  # reject unknown codecs before anything is measured
    outcome = SuiteOutcome(done, on_row, on_note)
    device = torch.device(config.device)
    fused = [Group(INPUT, nbytes, None) for nbytes in config.sizes if config.operations]
    num_groups = len(groups) + len(fused)
    made: tuple[str, int, BenchInput] | None = None
    with own_stream(device):
        suite = _Suite(config, outcome)
        for index, group in enumerate(groups):
            on_group(index, num_groups, group.label)
            if made is None or made[:2] != (group.input, group.nbytes):
                made = None
                made = (group.input, group.nbytes, group.make(device))
            suite.run_group(made[2], group.relative_bound)
        made = None
        for index, group in enumerate(fused, start=len(groups)):
            on_group(index, num_groups, f"fused operations, {group.label}")
            suite.run_operations(group)
    on_group(num_groups, num_groups, "done")
    return outcome


class _Suite:
    """The state of one run."""

    def __init__(self, config: KernelsConfig, outcome: SuiteOutcome) -> None:
        """Load the peers, and add the row of the device's copy, except on the CPU."""
        self.config, self.outcome = config, outcome
        self.device = torch.device(config.device)
        self.peers, absent = load_peers(config.peers, config.device)
        for sentence in absent:
            outcome.note(sentence)
        self.ceiling = ceiling_of(self.device)
        if self.ceiling is not None:
            row = self.ceiling.row(rounds=config.rounds, warmup=config.warmup)
            if row.key not in outcome.done:
                outcome.add(row)

    def _candidates(self, name_of_input: str, relative_bound: float | None) -> list[Candidate]:
        bounded, codecs = relative_bound is not None, self.config.codecs_of(name_of_input)
        ours: list[Candidate] = []
        for name in codecs:
            if takes_bound(name) == bounded:
                try:
                    ours.append(make_candidate(name, relative_bound))
                except BackendUnavailableError as error:
                    self.outcome.note(f"{name} is left out: {error}")
        if bounded and "huffman" in codecs:
            ours.append(HuffmanCodes())
        return [*ours, *(peer for peer in self.peers if peer.bounded == bounded)]

    def run_group(self, made: BenchInput, relative_bound: float | None) -> None:
        """Check and time all candidates on one input at one bound."""
        wanted = []
        for candidate in self._candidates(made.name, relative_bound):
            counts = [n for n in self.config.threads if n <= candidate.max_threads] or [1]
            identities = (self._identity(candidate, made, relative_bound, n) for n in counts)
            wanted += [(candidate, one) for one in identities if not self.outcome.is_done(one)]
        if not wanted:
            return
        subject = Subject.of(made, relative_bound)
        at = "" if relative_bound is None else f" at relative bound {relative_bound:g}"
        checked = self.outcome.checked(wanted, subject, f"{subject.name}{at}")
        trials = [trial for trial, _ in checked]
        times = time_trials(
            trials,
            device=self.device,
            rounds=self.config.rounds,
            warmup=self.config.warmup,
            ceiling=self.ceiling,
            clocks=clocks_of(self.device, has_many_tensors=len(subject.slices) > _MANY_TENSORS),
        )
        launches = launches_of(trials, self.device)
        for (trial, identity), seconds, count in zip(checked, times, launches, strict=True):
            values = {**identity, **trial.row_values(subject, seconds)}
            row = ResultRow(**values, num_launches=count, note=trial.candidate.note)
            self.outcome.add(row)

    def run_operations(self, group: Group) -> None:
        """Check and time all fused operations at one size."""
        config = self.config
        run = OperationsRun(
            config.operations, config.device, config.threads, config.rounds, config.warmup,
            self.ceiling,
        )  # fmt: skip
        run.measure(group.make(self.device), self.outcome)

    def _identity(
        self, candidate: Candidate, made: BenchInput, relative_bound: float | None, threads: int
    ) -> dict[str, Any]:
        spec = candidate.options()
        if relative_bound is not None:
            spec = {"bound": Bound.relative(relative_bound).to_config(), **spec}
        return row_identity(
            suite="kernels", codec=candidate.name, version=candidate.version, spec=spec,
            input=made.name, device=self.config.device, num_values=made.num_values, threads=threads,
        )  # fmt: skip
