"""The result of every suite, collected while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from tersor.bench.core.candidate import Candidate
from tersor.bench.core.rows import ResultRow, row_key
from tersor.bench.core.subject import Subject
from tersor.bench.core.trial import Trial, run_trial
from tersor.errors import BackendUnavailableError


def ignore(*_: object) -> None:
    """Do nothing."""


@dataclass(slots=True)
class SuiteOutcome:
    """The result of one run.

    Attributes:
        done: keys of rows that exist already and are not measured again.
        on_row: called with each finished row.
        on_note: called with each new note.
        rows: rows measured in this run.
        notes: one sentence for each fact a reader must know, such as what was left out.
        refusals: one sentence for each broken promise of ours.
    """

    done: frozenset[str] = frozenset()
    on_row: Callable[[ResultRow], None] = ignore
    on_note: Callable[[str], None] = ignore
    rows: list[ResultRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def add(self, row: ResultRow) -> None:
        """Add a finished row and report it to ``on_row``."""
        self.rows.append(row)
        self.on_row(row)

    def note(self, sentence: str) -> None:
        """Add a note unless it was made before, because every group of a suite would repeat it."""
        if sentence not in self.notes:
            self.notes.append(sentence)
            self.on_note(sentence)

    def is_done(self, identity: dict[str, Any]) -> bool:
        """Return True if a row with these key fields exists already."""
        return row_key(**identity) in self.done

    def checked(
        self,
        wanted: Iterable[tuple[Candidate, dict[str, Any]]],
        subject: Subject,
        where: str,
        *,
        left_out: str = "left out",
    ) -> list[tuple[Trial, dict[str, Any]]]:
        """Run every candidate once on a subject and return those that may be timed.

        Candidates that cannot run, break a promise or lose values are noted instead.

        Args:
            wanted: candidates, each with the fields of its row's key.
            subject: the data they run on.
            where: the subject in words, for notes on broken promises and lost values.
            left_out: the verb phrase for candidates that cannot run.
        """
        found = []
        for candidate, identity in wanted:
            try:
                trial = run_trial(candidate, subject, identity["threads"])
            except (BackendUnavailableError, torch.OutOfMemoryError) as error:
                self.note(f"{candidate.name} is {left_out}: {str(error).splitlines()[0]}")
                continue
            if trial.failure is None:
                found.append((trial, identity))
                continue
            sentence = f"{candidate.name} on {where} is {trial.failure}"
            if trial.is_refused:
                self.refusals.append(sentence)
            self.note(sentence)
        return found
