"""The ``kernels`` suite: every codec against its peers, end to end from and to float32.

No speed is reported before the round trip was checked in this process. All candidates of one input
and bound run in turn, each right after a memcpy of the same bytes, so that quotients hold on a
machine whose speed drifts. On CUDA a large copy is timed in the same rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from tersor.bench.core import machine
from tersor.bench.core.candidate import Candidate, HuffmanCodes
from tersor.bench.core.ceiling import ceiling_of
from tersor.bench.core.inputs import BenchInput
from tersor.bench.core.outcome import SuiteOutcome, ignore
from tersor.bench.core.rows import ResultRow, row_key
from tersor.bench.core.subject import Subject
from tersor.bench.core.timing import clock_of, own_stream
from tersor.bench.core.trial import Trial, TrialTimes, launches_of, run_trial, time_trials
from tersor.bench.kernels.config import KernelsConfig
from tersor.bench.kernels.variants import make_candidate, takes_bound
from tersor.bench.peers import load_peers
from tersor.errors import BackendUnavailableError
from tersor.types import Bound

_MANY_TENSORS: Final = 64
"""More than these take the host longer to queue than the usual lead of the clock."""


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
        on_note: called with one sentence for each thing left out or refused.
        on_group: called with (finished groups, all groups, label) before each group starts.

    Returns:
        The rows measured now, the notes, and the refusals: codecs of ours that broke a bound.

    Raises:
        SpecError: an input or peer in ``config`` does not exist.
        UnknownCodecError: a codec in ``config`` is not registered.
    """
    for name in config.codecs:
        takes_bound(name)  # refuses what does not exist before a word is said
    outcome = SuiteOutcome()
    device = torch.device(config.device)
    groups = config.groups()
    made: tuple[str, int, BenchInput] | None = None
    with own_stream(device):
        suite = _Suite(config, outcome, done, on_row, on_note)
        suite.run_ceiling()
        for index, group in enumerate(groups):
            on_group(index, len(groups), group.label)
            if made is None or made[:2] != (group.input, group.nbytes):
                made = None
                made = (group.input, group.nbytes, group.make(device))
            suite.run_group(made[2], group.relative_bound)
    on_group(len(groups), len(groups), "done")
    return outcome


class _Suite:
    """The state of one run."""

    def __init__(
        self,
        config: KernelsConfig,
        outcome: SuiteOutcome,
        done: frozenset[str],
        on_row: Callable[[ResultRow], None],
        on_note: Callable[[str], None],
    ) -> None:
        self.config = config
        self.device = torch.device(config.device)
        self.outcome = outcome
        self.done = done
        self.on_row = on_row
        self.on_note = on_note
        self.peers, absent = load_peers(config.peers, config.device)
        for sentence in absent:
            self._note(sentence)
        self.ceiling = ceiling_of(self.device)

    def _note(self, sentence: str) -> None:
        """Say something once: what cannot run cannot run in any group."""
        if sentence not in self.outcome.notes:
            self.outcome.notes.append(sentence)
            self.on_note(sentence)

    def _finish(self, row: ResultRow) -> None:
        self.outcome.rows.append(row)
        self.on_row(row)

    def run_ceiling(self) -> None:
        """Measure the device's copy and make it a row; nothing to do on the CPU."""
        if self.ceiling is None:
            return
        row = self.ceiling.row(rounds=self.config.rounds, warmup=self.config.warmup)
        if row.key not in self.done:
            self._finish(row)

    def _candidates(self, relative_bound: float | None) -> list[Candidate]:
        bounded = relative_bound is not None
        ours: list[Candidate] = []
        for name in self.config.codecs:
            if takes_bound(name) == bounded:
                try:
                    ours.append(make_candidate(name, relative_bound))
                except BackendUnavailableError as error:
                    self._note(f"{name} is left out: {error}")
        if bounded and "huffman" in self.config.codecs:
            ours.append(HuffmanCodes())
        return [*ours, *(peer for peer in self.peers if peer.bounded == bounded)]

    def run_group(self, made: BenchInput, relative_bound: float | None) -> None:
        """Check and time all candidates on one input at one bound."""
        wanted = []
        for candidate in self._candidates(relative_bound):
            counts = [n for n in self.config.threads if n <= candidate.max_threads] or [1]
            for threads in counts:
                identity = self._identity(candidate, made, relative_bound, threads)
                if row_key(**identity) not in self.done:
                    wanted.append((candidate, threads, identity))
        if not wanted:
            return
        subject = Subject.of(made, relative_bound)
        checked = []
        for candidate, threads, identity in wanted:
            try:
                trial = run_trial(candidate, subject, threads)
            except (BackendUnavailableError, torch.OutOfMemoryError) as error:
                reason = str(error).splitlines()[0]
                self._note(f"{candidate.name} is left out: {reason}")
                continue
            if not self._refused(trial, subject):
                checked.append((trial, identity))
        trials = [trial for trial, _ in checked]
        times = time_trials(
            trials,
            device=self.device,
            rounds=self.config.rounds,
            warmup=self.config.warmup,
            ceiling=self.ceiling,
            clock=clock_of(self.device, has_many_tensors=len(subject.slices) > _MANY_TENSORS),
        )
        launches = launches_of(trials, self.device)
        for (trial, identity), seconds, count in zip(checked, times, launches, strict=True):
            self._finish(self._row(trial, subject, identity, seconds, count))

    def _identity(
        self, candidate: Candidate, made: BenchInput, relative_bound: float | None, threads: int
    ) -> dict[str, Any]:
        spec = candidate.options()
        if relative_bound is not None:
            spec = {"bound": Bound.relative(relative_bound).to_config(), **spec}
        return {
            "suite": "kernels",
            "codec": candidate.name,
            "version": candidate.version,
            "spec": spec,
            "input": made.name,
            "device": self.config.device,
            "num_values": made.num_values,
            "threads": threads,
            "repeat": 1,
            "group": None,
            "git_commit": machine.git_commit(),
        }

    def _refused(self, trial: Trial, subject: Subject) -> bool:
        """True if no speed may be reported."""
        at = f" at relative bound {subject.relative_bound:g}" if subject.relative_bound else ""
        sentence = self.outcome.judge(trial, f"{subject.name}{at}")
        if sentence is not None:
            self._note(sentence)
        return sentence is not None

    def _row(
        self,
        trial: Trial,
        subject: Subject,
        identity: dict[str, Any],
        times: TrialTimes,
        num_launches: dict[str, int] | None,
    ) -> ResultRow:
        on_codes = trial.candidate.on_codes
        return ResultRow(
            **identity,
            original_nbytes=subject.nbytes,
            encoded_nbytes=trial.encoded_nbytes,
            worst_error=None if on_codes else trial.worst_error,
            error_bound=None if on_codes else trial.error_bound,
            encode_s=times.encode_s,
            decode_s=times.decode_s,
            # a copy of the codes moves a quarter of the bytes: not comparable with other rows
            memcpy_s=None if on_codes else times.memcpy_s,
            sampled_fraction=trial.sampled_fraction,
            peer=trial.candidate.peer,
            entropy_bits=subject.entropy_bits,
            distinct_rows=subject.distinct_rows,
            num_launches=num_launches,
            workspace_nbytes=trial.workspace_nbytes,
            copy_s=times.copy_s,
            note=trial.candidate.note,
            versions=machine.versions(),
            machine=machine.machine(self.device),
        )
