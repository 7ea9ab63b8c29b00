"""The ``lookups`` suite: every encoder on dumped look-ups, table by table.

Look-ups are cut into the slices that an exchange sends, each with the bound of its table and
iteration. No speed is reported before the round trip was checked in this process, and all encoders of
one table run in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from tersor.bench import machine
from tersor.bench.candidate import Candidate
from tersor.bench.lookups.candidates import (
    DEVICE_LOOKUP_CODECS,
    LOOKUP_CODECS,
    make_lookup_candidate,
)
from tersor.bench.lookups.facts import LookupFacts
from tersor.bench.lookups.inputs import Cut, LookUps
from tersor.bench.lookups.subject import TableSubject, table_subject
from tersor.bench.peers import COPIES, load_peers, peers_of
from tersor.bench.rows import ResultRow, row_key
from tersor.bench.suites.kernels import own_stream
from tersor.bench.suites.outcome import SuiteOutcome, ignore
from tersor.bench.trial import Trial, TrialTimes, run_trial, time_trials
from tersor.errors import BackendUnavailableError, SpecError
from tersor.policy import AdaptiveBounds, ClassBounds, Decay, classify
from tersor.policy.tables import TableClass

SUITE: Final = "lookups"
CODE_DTYPES: Final = {"int8": torch.int8, "int16": torch.int16, "auto": None}


@dataclass(frozen=True, kw_only=True, slots=True)
class LookupsConfig:
    """What to measure.

    Attributes:
        device: ``"cpu"`` or ``"cuda"``.
        cut: how look-ups become slices.
        tight: tables with the tight bound.
        loose: tables with the loose one; with neither, classes are found from the first look-up.
        by_hand: whether tables in neither list are base tables although both lists are empty.
        bounds: of the classes.
        decay: how bounds tighten over the iterations of the dumps.
        code_dtype: of codes for encoders that only take those: ``"int8"``, ``"int16"``, ``"auto"``.
        codecs: names from ``LOOKUP_CODECS`` or ids of registered codecs.
        peers: names from ``tersor.bench.peers.peers_of(device)``.
        rounds: timed rounds per table.
        warmup: rounds before those.
        first_iteration: look-ups before it are left out, though classes are found from the very first.
        max_tables: tables measured at most; all if None.
        max_iterations: look-ups per table at most, the first ones; all if None.
    """

    device: str = "cpu"
    cut: Cut = field(default_factory=Cut)
    tight: frozenset[int] = frozenset()
    loose: frozenset[int] = frozenset()
    by_hand: bool = False
    bounds: ClassBounds = field(default_factory=ClassBounds)
    decay: Decay = field(default_factory=Decay.off)
    code_dtype: str = "auto"
    codecs: tuple[str, ...] = LOOKUP_CODECS
    peers: tuple[str, ...] = ()
    rounds: int = 5
    warmup: int = 1
    first_iteration: int = 0
    max_tables: int | None = None
    max_iterations: int | None = None

    def __post_init__(self) -> None:
        """Refuse an empty or impossible plan."""
        if self.device not in ("cpu", "cuda"):
            raise SpecError(f"device must be 'cpu' or 'cuda', not {self.device!r}")
        if self.code_dtype not in CODE_DTYPES:
            raise SpecError(
                f"codes are {', '.join(CODE_DTYPES)} for --code-dtype, not {self.code_dtype!r}"
            )
        if self.rounds < 1 or not (self.codecs or self.peers):
            raise SpecError("name at least one encoder, and one round")

    @classmethod
    def for_device(cls, device: str, **asked: Any) -> LookupsConfig:
        """Return the full plan for a device, with what was asked for in place of its defaults."""
        codecs = DEVICE_LOOKUP_CODECS if device == "cuda" else LOOKUP_CODECS
        # no copies, and no codes alone on a device: they tell nothing about an exchange
        peers = tuple(
            name for name in peers_of(device) if not name.endswith("-codes") and name not in COPIES
        )
        return cls(device=device, **{"codecs": codecs, "peers": peers, **asked})

    def smoke(self) -> LookupsConfig:
        """Return the same plan on one look-up of three tables and with one round."""
        return replace(self, rounds=1, max_tables=3, max_iterations=1)


def run_lookups(
    config: LookupsConfig,
    look_ups: LookUps,
    *,
    done: frozenset[str] = frozenset(),
    on_row: Callable[[ResultRow], None] = ignore,
    on_note: Callable[[str], None] = ignore,
    on_table: Callable[[int, int, str], None] = ignore,
) -> SuiteOutcome:
    """Measure everything in ``config`` on all tables.

    Args:
        config: the plan.
        look_ups: dumped or made up.
        done: keys of rows that exist already (``RowFile.keys``) and are not measured again.
        on_row: called with each finished row; write it to disk here.
        on_note: called with one sentence for each thing left out or refused.
        on_table: called with (finished tables, all tables, label) before each table starts.

    Raises:
        SpecError: dumps cannot be measured as asked, or codes do not fit their dtype.
        UnknownCodecError: a codec in ``config`` is not registered.
    """
    outcome = SuiteOutcome()
    tables = list(look_ups.tables)[: config.max_tables]
    with own_stream(torch.device(config.device)):
        suite = _Suite(config, look_ups, outcome, done, on_row, on_note)
        # every table is looked at before the first is measured, so that nothing is found too late
        on_table(0, len(tables), "reading the dumps")
        suite.look(tables)
        for index, table in enumerate(tables):
            on_table(index, len(tables), f"table {table}")
            suite.run_table(table)
    on_table(len(tables), len(tables), "done")
    return outcome


class _Suite:
    """The state of one run."""

    def __init__(
        self,
        config: LookupsConfig,
        look_ups: LookUps,
        outcome: SuiteOutcome,
        done: frozenset[str],
        on_row: Callable[[ResultRow], None],
        on_note: Callable[[str], None],
    ) -> None:
        self.config, self.look_ups, self.outcome = config, look_ups, outcome
        self.done, self.on_row, self.on_note = done, on_row, on_note
        self.device = torch.device(config.device)
        self.input = f"{look_ups.name}-{look_ups.digest()}"
        self.peers, absent = load_peers(config.peers, config.device)
        for peer in self.peers:
            peer.code_dtype = CODE_DTYPES[config.code_dtype]
        for sentence in absent:
            self._note(sentence)

    def _note(self, sentence: str) -> None:
        """Say something once."""
        if sentence not in self.outcome.notes:
            self.outcome.notes.append(sentence)
            self.on_note(sentence)

    def look(self, tables: list[int]) -> None:
        """Find the classes of the tables, and refuse what cannot be measured."""
        config = self.config
        tight, loose = set(config.tight), set(config.loose)
        if not (config.by_hand or tight or loose):
            classes = self._classes(tables)
            tight = {table for table, name in classes.items() if name == "tight"}
            loose = {table for table, name in classes.items() if name == "loose"}
        self.policy = AdaptiveBounds(
            frozenset(tight), frozenset(loose), bounds=config.bounds, decay=config.decay
        )
        for table in tables:
            self._subject(table)

    def _classes(self, tables: list[int]) -> dict[int, TableClass]:
        """Class the tables by the rows of their first look-up, as a training does."""
        known = self.look_ups.num_rows
        if not set(tables) <= set(known):
            self._note(
                "the dumps do not say how large their tables are, so that classes follow from the "
                "distinct rows alone; name large ones with --tight-tables"
            )
        found = {}
        for table in tables:
            sizes = [known[table]] if table in known else None
            sample = [self.look_ups.read(table)[0].rows]
            found[table] = classify(sample, sizes, self.config.bounds)[0].table_class
        return found

    def _subject(self, table: int) -> TableSubject:
        config = self.config
        found = self.look_ups.read(table)
        wanted = [one for one in found if one.iteration >= config.first_iteration]
        if not wanted:
            raise SpecError(
                f"the last look-up of table {table} is at iteration {found[-1].iteration}, before "
                f"{config.first_iteration}; choose an earlier --from-iteration"
            )
        wanted = wanted[: config.max_iterations]
        dtype = CODE_DTYPES[config.code_dtype]
        return table_subject(table, wanted, config.cut, self.policy, dtype, self.device)

    def run_table(self, table: int) -> None:
        """Check and time all encoders on one table."""
        made = self._subject(table)
        wanted = []
        for candidate in self._candidates(made):
            identity = self._identity(candidate, made)
            if row_key(**identity) not in self.done:
                wanted.append((candidate, identity))
        checked = []
        for candidate, identity in wanted:
            try:
                trial = run_trial(candidate, made.subject, threads=1)
            except (BackendUnavailableError, torch.OutOfMemoryError) as error:
                self._note(f"{candidate.name} is left out: {str(error).splitlines()[0]}")
                continue
            if not self._refused(trial, made):
                checked.append((trial, identity))
        times = time_trials(
            [trial for trial, _ in checked],
            device=self.device,
            rounds=self.config.rounds,
            warmup=self.config.warmup,
        )
        for (trial, identity), seconds in zip(checked, times, strict=True):
            row = self._row(trial, made, identity, seconds)
            self.outcome.rows.append(row)
            self.on_row(row)

    def _candidates(self, made: TableSubject) -> list[Candidate]:
        ours: list[Candidate] = []
        for name in self.config.codecs:
            try:
                ours.append(make_lookup_candidate(name, made.relative_bounds, made.width))
            except BackendUnavailableError as error:
                self._note(f"{name} is left out: {error}")
        return [*ours, *self.peers]

    def _identity(self, candidate: Candidate, made: TableSubject) -> dict[str, Any]:
        spec = candidate.options()
        if candidate.bounded or candidate.on_codes:
            spec = {**made.bound_config(self.policy), **spec}
        if candidate.quantized_by_us or candidate.on_codes:
            spec["code_dtype"] = self.config.code_dtype
        return {
            "suite": SUITE,
            "codec": candidate.name,
            "version": candidate.version,
            "spec": spec,
            "input": self.input,
            "device": self.config.device,
            "num_values": made.num_values,
            "threads": 1,
            "repeat": self.config.cut.repeat,
            "group": made.group,
            "git_commit": machine.git_commit(),
        }

    def _refused(self, trial: Trial, made: TableSubject) -> bool:
        """Say whether no row may be made; a peer's broken bound is shown in its row."""
        candidate = trial.candidate
        if not trial.broken or (candidate.peer and not candidate.on_codes):
            return False
        sentence = (
            f"{candidate.name} on table {made.table} is refused: error {trial.worst_error:.9g} "
            f"where {trial.error_bound:.9g} was promised"
        )
        self.outcome.refusals.append(sentence)
        self._note(sentence)
        return True

    def _row(
        self, trial: Trial, made: TableSubject, identity: dict[str, Any], times: TrialTimes
    ) -> ResultRow:
        on_codes = trial.candidate.on_codes
        return ResultRow(
            **identity,
            original_nbytes=made.subject.nbytes,
            encoded_nbytes=trial.encoded_nbytes,
            worst_error=None if on_codes else trial.worst_error,
            error_bound=None if on_codes else trial.error_bound,
            encode_s=times.encode_s,
            decode_s=times.decode_s,
            memcpy_s=None if on_codes else times.memcpy_s,
            sampled_fraction=trial.sampled_fraction,
            peer=trial.candidate.peer,
            entropy_bits=made.subject.entropy_bits,
            distinct_rows=made.subject.distinct_rows,
            workspace_nbytes=trial.workspace_nbytes,
            lookups=self._facts(trial, made),
            note=self._row_note(trial.candidate),
            versions=machine.versions(),
            machine=machine.machine(self.device),
        )

    def _facts(self, trial: Trial, made: TableSubject) -> LookupFacts:
        return LookupFacts(
            table=made.table,
            table_class=self.policy.table_class(made.table),
            num_rows=made.num_values // made.width,
            width=made.width,
            num_ranks=self.config.cut.num_ranks,
            num_slices=len(made.relative_bounds),
            num_iterations=made.num_iterations,
            num_distinct=made.num_distinct,
            num_distinct_codes=made.num_distinct_codes,
            error_share=0.0 if trial.candidate.on_codes else trial.error_share,
            setting=made.setting,
        )

    def _row_note(self, candidate: Candidate) -> str:
        repeat = self.config.cut.repeat
        copies = [] if repeat == 1 else [f"rows repeated {repeat} times, which flatters copies"]
        return "; ".join([*copies, *([candidate.note] if candidate.note else [])])
