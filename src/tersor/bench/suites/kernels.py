"""The ``kernels`` suite: every codec against its peers, end to end from and to float32.

No speed is reported before the round trip was checked in this process. All candidates of one input
and bound run in turn, each right after a memcpy of the same bytes, so that quotients hold on a
machine whose speed drifts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from tersor.bench import machine
from tersor.bench.candidate import Candidate, CodecCandidate, HuffmanCodes
from tersor.bench.inputs import DEFAULT_INPUTS, FULL_NBYTES, SMOKE_NBYTES, BenchInput, make_input
from tersor.bench.peers import PEERS, load_peer
from tersor.bench.rows import ResultRow, row_key
from tersor.bench.subject import Subject
from tersor.bench.trial import Trial, TrialTimes, run_trial, time_trials
from tersor.codecs import registry
from tersor.errors import BackendUnavailableError, SpecError
from tersor.types import Bound

DEFAULT_CODECS: Final = (
    "flat", "delta", "huffman", "ans", "lz4", "zstd", "rows", "group8", "group4",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class KernelsConfig:
    """What to measure.

    Attributes:
        device: ``"cpu"``, or ``"cuda"`` where kernels for it exist; peers run on the CPU only.
        inputs: names from ``tersor.bench.inputs.INPUTS``.
        bounds: relative bounds; empty for each input's own.
        codecs: ids of registered codecs.
        peers: names from ``tersor.bench.peers.PEERS``.
        threads: thread counts for our codecs; peers use one.
        nbytes: size of each input, a power of two.
        rounds: timed rounds per group.
    """

    device: str = "cpu"
    inputs: tuple[str, ...] = DEFAULT_INPUTS
    bounds: tuple[float, ...] = ()
    codecs: tuple[str, ...] = DEFAULT_CODECS
    peers: tuple[str, ...] = tuple(PEERS)
    threads: tuple[int, ...] = (1, 2)
    nbytes: int = FULL_NBYTES
    rounds: int = 7

    def __post_init__(self) -> None:
        """Refuse an empty or impossible plan."""
        if self.device not in ("cpu", "cuda"):
            raise SpecError(f"device must be 'cpu' or 'cuda', not {self.device!r}")
        if not self.inputs or not (self.codecs or self.peers):
            raise SpecError("name at least one input and one codec or peer to measure")
        if not self.threads or any(count < 1 for count in self.threads):
            raise SpecError(f"thread counts must be at least 1, not {list(self.threads)}")
        if any(not bound > 0 for bound in self.bounds):
            raise SpecError(f"relative bounds must be above 0, not {list(self.bounds)}")

    def smoke(self) -> KernelsConfig:
        """Return the same plan on 1 MiB inputs and with one round: it proves that all runs."""
        return replace(self, nbytes=SMOKE_NBYTES, rounds=1)


@dataclass(slots=True)
class KernelsOutcome:
    """What a run gave: new rows, what could not run, and what broke its promise."""

    rows: list[ResultRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)


def _ignore(*_: object) -> None:
    """Do nothing: the callback of those who only want the outcome."""


def run_kernels(
    config: KernelsConfig,
    *,
    done: frozenset[str] = frozenset(),
    on_row: Callable[[ResultRow], None] = _ignore,
    on_note: Callable[[str], None] = _ignore,
    on_group: Callable[[int, int, str], None] = _ignore,
) -> KernelsOutcome:
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
    outcome = KernelsOutcome()
    suite = _Suite(config, outcome, done, on_row, on_note)
    groups = suite.groups()
    made: BenchInput | None = None
    for index, (name, bound) in enumerate(groups):
        label = name if bound is None else f"{name}, relative bound {bound:g}"
        on_group(index, len(groups), label)
        if made is None or made.name != name:
            made = make_input(name, config.nbytes)
        suite.run_group(made, bound)
    on_group(len(groups), len(groups), "done")
    return outcome


class _Suite:
    """The state of one run."""

    def __init__(
        self,
        config: KernelsConfig,
        outcome: KernelsOutcome,
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
        self.peers = [] if config.device == "cuda" else self._load_peers()

    def _note(self, sentence: str) -> None:
        self.outcome.notes.append(sentence)
        self.on_note(sentence)

    def _load_peers(self) -> list[Candidate]:
        peers: list[Candidate] = []
        for name in self.config.peers:
            try:
                peers.append(load_peer(name))
            except BackendUnavailableError as error:
                self._note(str(error))
        return peers

    def groups(self) -> list[tuple[str, float | None]]:
        """Return all pairs of input and bound; None stands for candidates without a bound."""
        pairs: list[tuple[str, float | None]] = []
        for name in self.config.inputs:
            own_bounds = make_input(name, SMOKE_NBYTES).relative_bounds
            pairs += [(name, bound) for bound in self.config.bounds or own_bounds]
            pairs.append((name, None))
        return pairs

    def _candidates(self, relative_bound: float | None) -> list[Candidate]:
        bounded = relative_bound is not None
        ours: list[Candidate] = [
            CodecCandidate.create(codec_id, relative_bound)
            for codec_id in self.config.codecs
            if registry.get(codec_id).takes_bound() == bounded
        ]
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
        subject = Subject.of(made, relative_bound, self.device)
        checked = []
        for candidate, threads, identity in wanted:
            try:
                trial = run_trial(candidate, subject, threads)
            except BackendUnavailableError as error:
                self._note(f"{candidate.name} is left out: {error}")
                continue
            if not self._refused(trial, subject):
                checked.append((trial, identity))
        times = time_trials(
            [trial for trial, _ in checked], device=self.device, rounds=self.config.rounds
        )
        for (trial, identity), trial_times in zip(checked, times, strict=True):
            row = self._row(trial, subject, identity, trial_times)
            self.outcome.rows.append(row)
            self.on_row(row)

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
        """Say whether no speed may be reported; a peer's broken bound is shown in its row."""
        candidate = trial.candidate
        if not trial.broken or (candidate.peer and not candidate.on_codes):
            return False
        at = f" at relative bound {subject.relative_bound:g}" if subject.relative_bound else ""
        sentence = (
            f"{candidate.name} on {subject.name}{at} is refused: error {trial.worst_error:.9g} "
            f"where {trial.error_bound:.9g} was promised"
        )
        self.outcome.refusals.append(sentence)
        self._note(sentence)
        return True

    def _row(
        self, trial: Trial, subject: Subject, identity: dict[str, Any], times: TrialTimes
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
            note=trial.candidate.note,
            versions=machine.versions(),
            machine=machine.machine(self.device),
        )
