"""The ``lookups`` suite: every encoder on dumped look-ups, for each table and for whole steps.

Look-ups are cut into the slices that an exchange sends, each with the bound of its table and
iteration. No speed is reported before the round trip was checked in this process. All encoders of one
table, or of one step, run in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from tersor.bench.core.candidate import Candidate
from tersor.bench.core.lookup_facts import ALL_CLASSES, LookupFacts
from tersor.bench.core.outcome import SuiteOutcome, ignore
from tersor.bench.core.rows import LookupRow, ResultRow, row_identity
from tersor.bench.core.timing import Clocks, clock_of, own_stream
from tersor.bench.core.trial import Trial, time_trials
from tersor.bench.embeddings.lookups.candidates import make_lookup_candidate
from tersor.bench.embeddings.lookups.config import CODE_DTYPES, LookupsConfig
from tersor.bench.embeddings.lookups.inputs import Cut, LookUp, LookUps, named_tables
from tersor.bench.embeddings.lookups.subject import LookupSubject, step_subject, table_subject
from tersor.bench.peers import load_peers
from tersor.errors import BackendUnavailableError, SpecError
from tersor.sites.embeddings import AdaptiveBounds, classify
from tersor.sites.embeddings.classes import Classification

SUITE: Final = "lookups"
_STEP_ROUNDS: Final = 3
"""Rounds of the whole step per round of a table; there is only one step, and its times decide."""


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
        look_ups: dumped or synthetic look-ups.
        done: keys of rows that exist already (``RowFile.keys``) and are not measured again.
        on_row: called with each finished row; write it to disk here.
        on_note: called with one sentence for each encoder left out or refused.
        on_table: called with (finished tables, all tables, label) before each table starts.

    Raises:
        SpecError: the dumps do not suit the plan, or codes do not fit their dtype.
    """
    outcome = SuiteOutcome(done, on_row, on_note)
    tables = list(look_ups.tables)[: config.max_tables]
    with own_stream(torch.device(config.device)):
        suite = _Suite(config, look_ups, outcome)
        # check every table before measuring the first, so that problems show up early
        on_table(0, len(tables), "reading the dumps")
        suite.look(tables)
        for index, table in enumerate(tables):
            on_table(index, len(tables), f"table {table}")
            suite.measure(suite.table(table))
        if config.steps:
            on_table(len(tables), len(tables), "all tables of a step")
            suite.measure(suite.step(tables))
    on_table(len(tables), len(tables), "done")
    return outcome


class _Suite:
    """The state of one run."""

    def __init__(self, config: LookupsConfig, look_ups: LookUps, outcome: SuiteOutcome) -> None:
        self.config, self.look_ups, self.outcome = config, look_ups, outcome
        self.device = torch.device(config.device)
        self.input = f"{look_ups.name}-{look_ups.digest()}"
        self.peers, absent = load_peers(config.peers, config.device)
        for peer in self.peers:
            peer.code_dtype = CODE_DTYPES[config.code_dtype]
        for sentence in absent:
            self.outcome.note(sentence)

    def look(self, tables: list[int]) -> None:
        """Determine the classes of the tables, and reject dumps that cannot be measured."""
        config = self.config
        self.policy = AdaptiveBounds(
            config.tight, config.loose, bounds=config.bounds, decay=config.decay
        )
        if not (config.by_hand or config.tight or config.loose):
            self.policy = AdaptiveBounds.from_classes(
                self._classes(tables), bounds=config.bounds, decay=config.decay
            )
        self._check_named()
        sizes = []
        for table in tables:
            wanted = self._wanted(table)
            self._subject(table, wanted, config.cut)
            sizes += [len(one.rows) for one in wanted]
        num_left_out = sum(map(config.cut.num_left_out, sizes))
        if num_left_out:
            num_rows = sum(sizes) * config.cut.repeat
            self.outcome.note(
                f"batches of {config.cut.batch} leave out {num_left_out:,} of {num_rows:,} rows, which "
                "make no whole batch; a --batch that divides every look-up counts all"
            )

    def _check_named(self) -> None:
        """Reject classes of tables that the dumps lack; a wrong number would go unnoticed."""
        there = set(self.look_ups.tables)
        named = self.policy.tight | self.policy.loose
        others = {table for table in named if isinstance(table, int)} - there
        if others:
            raise SpecError(
                f"classes name {named_tables(others)}, but {self.look_ups.name} has "
                f"{named_tables(there)}; correct --tight-tables and --loose-tables"
            )

    def _classes(self, tables: list[int]) -> list[Classification]:
        """Classify the tables by the rows of their first look-up, as training does."""
        known = self.look_ups.num_rows
        unknown = [table for table in tables if table not in known]
        if unknown:
            some = named_tables(unknown) if len(unknown) < len(tables) else "their tables"
            verb = "is" if some.startswith("table ") else "are"
            self.outcome.note(
                f"the dumps do not say how large {some} {verb}, so that classes follow from the "
                "distinct rows alone there; name large tables with --tight-tables"
            )
        found: list[Classification] = []
        for table in tables:
            sizes: dict[int | str, int] | None = {table: known[table]} if table in known else None
            found += classify({table: self.look_ups.read(table)[0].rows}, sizes, self.config.bounds)
        return found

    def table(self, table: int) -> LookupSubject:
        """Return the subject of all wanted look-ups of a table."""
        return self._subject(table, self._wanted(table), self.config.cut)

    def step(self, tables: list[int]) -> LookupSubject:
        """Return the first batch of each table's last look-up, which is what one step exchanges."""
        cut = self.config.cut

        def last(table: int) -> LookupSubject:
            found = self._wanted(table)[-1]
            batch = LookUp(found.iteration, cut.first_batch(found.rows))
            return self._subject(table, [batch], Cut(cut.num_ranks))

        return step_subject(last(table) for table in tables)

    def _wanted(self, table: int) -> list[LookUp]:
        found, first = self.look_ups.read(table), self.config.first_iteration
        wanted = [one for one in found if one.iteration >= first]
        if not wanted:
            raise SpecError(
                f"the last look-up of table {table} is at iteration {found[-1].iteration}, before "
                f"{first}; choose an earlier --from-iteration"
            )
        return wanted[: self.config.max_iterations]

    def _subject(self, table: int, look_ups: list[LookUp], cut: Cut) -> LookupSubject:
        dtype = CODE_DTYPES[self.config.code_dtype]
        return table_subject(table, look_ups, cut, self.policy, dtype, self.device)

    def measure(self, made: LookupSubject) -> None:
        """Check and time all encoders on the look-ups of one table or one step."""
        known = ((one, self._identity(one, made)) for one in self._candidates(made))
        wanted = [pair for pair in known if not self.outcome.is_done(pair[1])]
        name = made.subject.name
        checked = self.outcome.checked(wanted, made.subject, name, left_out=f"left out of {name}")
        is_step = made.table is None
        times = time_trials(
            [trial for trial, _ in checked],
            device=self.device,
            rounds=self.config.rounds * (_STEP_ROUNDS if is_step else 1),
            warmup=self.config.warmup,
            clocks=Clocks(clock_of(self.device, has_many_tensors=is_step)),
        )
        for (trial, identity), seconds in zip(checked, times, strict=True):
            values = {**identity, **trial.row_values(made.subject, seconds)}
            facts, note = self._facts(trial, made), self._row_note(trial.candidate)
            self.outcome.add(LookupRow(**values, lookups=facts, note=note))

    def _candidates(self, made: LookupSubject) -> list[Candidate]:
        ours: list[Candidate] = []
        for name in self.config.codecs:
            try:
                ours.append(make_lookup_candidate(name, made.relative_bounds, made.widths))
            except BackendUnavailableError as error:
                self.outcome.note(f"{name} is left out: {error}")
        return [*ours, *self.peers]

    def _identity(self, candidate: Candidate, made: LookupSubject) -> dict[str, Any]:
        spec = candidate.options()
        if candidate.bounded or candidate.on_codes:
            spec = {**made.bound_config(self.policy), **spec}
        if candidate.quantized_by_us or candidate.on_codes:
            spec["code_dtype"] = self.config.code_dtype
        return row_identity(
            suite=SUITE, codec=candidate.name, version=candidate.version, spec=spec,
            input=self.input, device=self.config.device, num_values=made.num_values,
            repeat=self.config.cut.repeat, group=self._group(made),
        )  # fmt: skip

    def _group(self, made: LookupSubject) -> str:
        num_ranks, num_rows = self.config.cut.num_ranks, len(made.subject.slices[0])
        # existing rows of one rank say "1 ranks", and rows are compared by these words
        words = f"{made.subject.name}, {num_ranks} ranks, slices of {num_rows} rows"
        return ", ".join(filter(None, (words, self.config.setting)))

    def _facts(self, trial: Trial, made: LookupSubject) -> LookupFacts:
        return LookupFacts(
            table=made.table,
            table_class=ALL_CLASSES if made.table is None else self.policy.table_class(made.table),
            num_rows=made.num_rows,
            width=max(made.widths),
            num_ranks=self.config.cut.num_ranks,
            num_slices=len(made.relative_bounds),
            num_iterations=made.num_iterations,
            num_distinct=made.num_distinct,
            num_distinct_codes=made.num_distinct_codes,
            error_share=0.0 if trial.candidate.on_codes else trial.error_share,
            setting=self.config.setting,
            num_tables=len(self.look_ups.tables),
        )

    def _row_note(self, candidate: Candidate) -> str:
        repeat = self.config.cut.repeat
        copies = [] if repeat == 1 else [f"rows repeated {repeat} times, which flatters copies"]
        return "; ".join([*copies, *([candidate.note] if candidate.note else [])])
