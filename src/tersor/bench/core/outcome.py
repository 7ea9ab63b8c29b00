"""What every suite gives back, collected while it runs."""

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
    """What a run gave.

    Attributes:
        done: keys of rows that exist already and are not measured again.
        on_row: called with each finished row.
        on_note: called with each new note.
        rows: measured now.
        notes: one sentence for each thing a reader must know, such as what was left out.
        refusals: one sentence for each thing of ours that broke its promise.
    """

    done: frozenset[str] = frozenset()
    on_row: Callable[[ResultRow], None] = ignore
    on_note: Callable[[str], None] = ignore
    rows: list[ResultRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def add(self, row: ResultRow) -> None:
        """Keep a finished row."""
        self.rows.append(row)
        self.on_row(row)

    def note(self, sentence: str) -> None:
        """Say something once: what cannot run cannot run in any group."""
        if sentence not in self.notes:
            self.notes.append(sentence)
            self.on_note(sentence)

    def is_done(self, identity: dict[str, Any]) -> bool:
        """True if a row with these fields of the key exists already."""
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

        Args:
            wanted: candidates, each with the fields of its row's key.
            subject: what they run on.
            where: the subject in words, for those that broke a promise or lost values.
            left_out: words for those that cannot run.
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
