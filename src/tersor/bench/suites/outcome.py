"""What every suite gives back, and the callback of those who want nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field

from tersor.bench.rows import ResultRow


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


def ignore(*_: object) -> None:
    """Do nothing."""
