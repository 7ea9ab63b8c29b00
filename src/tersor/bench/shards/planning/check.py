"""Check the model by predicting every measured exchange and step from the rows of other links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tersor.bench.core.rows import ResultRow, ShardRow, latest
from tersor.bench.planning.check import Check, Point, held_out, refuse_unpredicted
from tersor.bench.shards.contenders import BASELINES
from tersor.bench.shards.planning.fit import fit_shards, measured_model, plannable
from tersor.bench.shards.planning.model import Fit
from tersor.errors import SpecError


def check(rows: Iterable[ResultRow], hold_out: str = "link") -> Check:
    """Predict the rows of every link from those of the others.

    If rows answer the same question, the last one counts.

    Raises:
        SpecError: there is only one link, or no step on one at all, or ``hold_out`` is not ``"link"``.
    """
    if hold_out != "link":
        raise SpecError(f"of rows of shards a link is held out, not {hold_out!r}")
    return held_out(
        plannable(latest(rows)), hold_out, lambda row: row.shards.link or "", fit_shards, _points,
        _constants, made_by="tersor bench shards as root",
    )  # fmt: skip


def _points(rows: Sequence[ShardRow], fit: Fit) -> list[Point]:
    points = []
    for row in rows:
        refuse_unpredicted(row.codec, fit.methods, "link")
        times = row.shards
        found = measured_model(fit, row).predict(row.codec, times.num_ranks)
        compared = (
            ("exchange", times.exchange_s.p50, found.transfers_s),
            ("step", times.step_s.p50, found.step_s),
        )
        points += [
            Point(
                codec=row.codec, what=what, link=times.link or "", num_ranks=times.num_ranks,
                batch=times.batch, measured_s=measured_s, predicted_s=predicted_s, hold_out="link",
            )
            for what, measured_s, predicted_s in compared
        ]  # fmt: skip
    return points


def _constants(fit: Fit) -> str:
    ring, pairwise, near = (fit.transports[kind] for kind in ("ring", "pairwise", "near"))
    parts = [
        f"rings reach {ring.efficiency:.0%} of a link and all-to-alls {pairwise.efficiency:.0%}",
        f"a pass takes {ring.payload_s * 1e3:.1f} ms",
        f"a byte within a node {near.host_s_per_byte * 1e9:.2f} ns",
    ]
    for wrapper, baseline in BASELINES.items():
        method = fit.methods.get(baseline)
        if method is not None:
            hidden = f", {method.overlap:.0%} of sending hidden" if method.overlap else ""
            parts.append(f"{wrapper} computes {method.compute_s * 1e3:.0f} ms{hidden}")
    return ", ".join(parts)
