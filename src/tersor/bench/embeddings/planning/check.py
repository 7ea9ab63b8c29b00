"""Check the model by predicting every measured exchange and step from the other rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from tersor.bench.core.exchange_times import ExchangeTimes
from tersor.bench.core.rows import ExchangeRow, ResultRow, latest
from tersor.bench.embeddings.planning.fit import fit_exchanges, plannable
from tersor.bench.embeddings.planning.model import Fit, Model
from tersor.bench.planning.check import Check, Point, held_out, refuse_unpredicted
from tersor.errors import SpecError

HOLD_OUT: Final = ("link", "batch")


def check(rows: Iterable[ResultRow], hold_out: str = "link") -> Check:
    """Predict the rows of every link (or batch) from those of the others.

    If rows answer the same question, the last one counts.

    Raises:
        SpecError: there is only one link (or batch), or no exchange at all.
    """
    exchanges = plannable(latest(rows))
    if hold_out not in HOLD_OUT:
        raise SpecError(f"what is held out is {' or '.join(HOLD_OUT)}, not {hold_out!r}")
    return held_out(
        exchanges, hold_out, lambda row: str(getattr(row.exchange, hold_out)), fit_exchanges,
        lambda own, fit: _points(own, fit, hold_out), _constants,
        made_by="tersor bench embeddings without DIR",
    )  # fmt: skip


def _points(rows: Sequence[ExchangeRow], fit: Fit, hold_out: str) -> list[Point]:
    points = []
    for row in rows:
        times = row.exchange
        refuse_unpredicted(row.codec, fit.profiles, hold_out)
        found = _model(fit, times).predict(row.codec, times.num_ranks)
        predicted_s = found.phases[times.direction].total_s
        compared = [(times.direction, times.exchange_s.p50, predicted_s)]
        if times.direction == "forward":
            compared.append(("step", times.step_s.p50, found.step_s))
        points += [
            Point(
                codec=row.codec, what=what, link=times.link or "", num_ranks=times.num_ranks,
                batch=times.batch, measured_s=measured_s, predicted_s=predicted_s,
                hold_out=hold_out,
            )
            for what, measured_s, predicted_s in compared
        ]  # fmt: skip
    return points


def _model(fit: Fit, times: ExchangeTimes) -> Model:
    """Return the model of the measured network; the fitted fixed costs already include latency."""
    said = {
        "ranks_per_node": times.ranks_per_node, "inter": times.link, "batch": times.batch,
        "latency": "0us", "intra_latency": "0us",
    }  # fmt: skip
    return fit.model(said)


def _constants(fit: Fit) -> str:
    transport, compute = fit.transport, fit.compute
    host_ns = transport.host_s_per_byte * 1e9
    parts = [
        f"an all-to-all reaches {transport.efficiency:.0%} of a link",
        f"sizes {transport.sizes_s * 1e3:.1f} ms",
        f"payload {transport.payload_s * 1e3:.1f} ms and {host_ns:.2f} ns per byte",
        f"{transport.unready_s * 1e3:.1f} ms more without sizes",
    ]
    if compute is not None and fit.allreduce_nbytes is not None:
        parts.append(
            f"computing {compute.fixed_s * 1e3:.0f} ms and {compute.each_s * 1e6:.0f} us per sample"
        )
        parts.append(f"all-reduce of {fit.allreduce_nbytes / 1e6:.1f} MB")
    return ", ".join(parts)
