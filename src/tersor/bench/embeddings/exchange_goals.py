"""The goals for exchanges between ranks, judged from result rows."""

from __future__ import annotations

from collections.abc import Iterable

from tersor.bench.core.goal import Goal
from tersor.bench.core.rows import ResultRow
from tersor.bench.embeddings.contenders import BOUNDED
from tersor.bench.embeddings.exchange_tables import ExchangePair, exchange_pairs

_ASKED = ("1gbit", 4, 1)
"""Link, ranks, and ranks of a node."""


def exchange_goals(rows: Iterable[ResultRow]) -> list[Goal]:
    """Judge what is asked of exchanges on 4 links of 1 Gbit/s, per batch; the best of ours decides."""
    found: dict[int, list[tuple[ExchangePair, tuple[float, float, float]]]] = {}
    for pair in exchange_pairs(rows):
        times, gains = pair.times, pair.speedups()
        is_asked = (times.link, times.num_ranks, times.ranks_per_node) == _ASKED
        if is_asked and gains is not None and pair.forward.codec in BOUNDED:
            found.setdefault(times.batch, []).append((pair, gains))
    asked = (("forward exchange 6.2 x float32's", 6.2, 0), ("whole step 2.0 x float32's", 2.0, 2))
    goals = []
    for name, target, k in asked:
        for batch, ours in sorted(found.items()):
            pair, gains = max(ours, key=lambda one: one[1][k])
            detail = f"{pair.forward.codec} on {pair.forward.input}"
            goals.append(Goal(f"{name}, batch {batch:,}", target, gains[k], detail))
    return goals or [Goal(name, target, None, "no such rows") for name, target, _ in asked]
