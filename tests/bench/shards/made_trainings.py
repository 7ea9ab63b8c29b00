"""Rows of whole trainings that nobody made."""

from __future__ import annotations

from typing import Any

from tersor.bench.core.blocks import Estimate, Quality
from tersor.bench.core.rows import TrainingRow
from tersor.bench.core.training_facts import TrainingFacts
from tersor.bench.shards.accuracy import SUITE
from tests.bench.core.test_rows import make_row


def training_row(scheme: str, seed: int, loss: float, **changes: Any) -> TrainingRow:
    """Return a training of 300 steps on 2 nodes of 2 ranks, whose loss fell to ``loss``."""
    facts = {
        "data": "text", "seed": seed, "steps": 300, "batch": 16, "num_ranks": 4, "ranks_per_node": 2,
        "curve": [(150, 2 * loss), (300, loss)], "step_s": 0.5,
    }  # fmt: skip
    facts |= {name: changes.pop(name) for name in list(changes) if name in facts}
    plain = make_row(
        suite=SUITE, codec=scheme, input="gpt-2M", group=changes.pop("group", f"seed {seed}"), original_nbytes=800,
        encoded_nbytes=0 if scheme == "exact" else 100,
        quality=Quality(loss=Estimate(mean=loss)),
    )  # fmt: skip
    values = {name: getattr(plain, name) for name in plain.__struct_fields__}
    return TrainingRow(**{**values, "training": TrainingFacts(**facts), **changes})


def training_rows() -> list[TrainingRow]:
    """Return three seeds; ``both`` is 0.1, 0.2 and 0.3 % worse than exact, ``direct`` 5 %."""
    found = []
    for seed, exact in enumerate((2.0, 2.1, 2.2)):
        found += [
            training_row("exact", seed, exact),
            training_row("direct", seed, 1.05 * exact),
            training_row("both", seed, (1.001 + 0.001 * seed) * exact),
        ]
    return found
