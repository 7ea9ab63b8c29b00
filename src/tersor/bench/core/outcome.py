"""What every suite gives back, and the callback of those who want nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field

from tersor.bench.core.rows import ResultRow
from tersor.bench.core.trial import Trial


@dataclass(slots=True)
class SuiteOutcome:
    """What a run gave.

    Attributes:
        rows: measured now.
        notes: one sentence for each thing a reader must know, such as what was left out.
        refusals: one sentence for each thing of ours that broke its promise.
    """

    rows: list[ResultRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def judge(self, trial: Trial, where: str) -> str | None:
        """Return why a trial may not be timed, in a sentence; keep it if we answer for it."""
        if trial.failure is None:
            return None
        sentence = f"{trial.candidate.name} on {where} is {trial.failure}"
        if trial.is_refused:
            self.refusals.append(sentence)
        return sentence


def ignore(*_: object) -> None:
    """Do nothing."""
