"""Predict steps on other links from training runs with and without compression."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tersor.bench.embeddings.planning.description import Workload
from tersor.bench.embeddings.planning.model import Model, Profile
from tersor.bench.embeddings.planning.trace import computing_s
from tersor.planning import BASELINE, Cluster, CodecCosts, Line, RatioCurve, Transport
from tersor.workloads.dlrm.comparison import DlrmOutcome

GBIT_S: Final = (1.0, 10.0, 100.0)
"""The bandwidths that most readers care about."""
LINKS_HEAD: Final = ("link Gbit/s", "uncompressed ms", "adaptive ms", "times as fast")
HOW: Final = (
    "Predicted from this run: a step computes, encodes and decodes as long as measured here, and sends "
    "its bytes over a link per rank at full bandwidth, one after the other."
)


def predicted_links(
    plain: DlrmOutcome, small: DlrmOutcome, *, batch: int, num_ranks: int
) -> dict[str, Any]:
    """Predict the step times of both runs on links of ``GBIT_S``, JSON-ready.

    Args:
        plain: the run without compression; its computing time is used for both.
        small: the same run with compression.
        batch: samples of all ranks per step.
        num_ranks: number of ranks in both runs.

    Raises:
        SpecError: there is only one rank, which uses no link.
    """
    model = _model(plain, small, batch, num_ranks)
    steps = []
    for gbit_s in GBIT_S:
        there = model.at_bandwidth(gbit_s * 1e9, num_ranks)
        plain_s, small_s = (
            there.predict(name, num_ranks).step_s for name in (BASELINE, small.name)
        )
        steps.append({
            "gbit_s": gbit_s, "uncompressed_s": plain_s, "adaptive_s": small_s,
            "speedup": plain_s / small_s,
        })  # fmt: skip
    pays = model.break_even(small.name, num_ranks)
    return {
        "how": HOW,
        "compute_s": model.compute.fixed_s,
        "steps": steps,
        "pays_up_to_gbit_s": None if pays is None else pays / 1e9,
    }


def _model(plain: DlrmOutcome, small: DlrmOutcome, batch: int, num_ranks: int) -> Model:
    rows = batch / num_ranks
    profiles = {
        name: Profile(name, _costs(one, "forward", rows), _costs(one, "backward", rows))
        for name, one in ((BASELINE, plain), (small.name, small))
    }
    sent_nbytes = plain.volume("forward").original_nbytes / plain.steps
    return Model(
        profiles=profiles,
        transport=Transport(),
        cluster=Cluster.parse({}),
        workload=Workload(batch=batch),
        sample_nbytes=sent_nbytes / batch,
        compute=Line(computing_s(f"the run {plain.name!r}", plain.lines)),
    )


def _costs(outcome: DlrmOutcome, direction: str, rows: float) -> CodecCosts:
    volume, seconds = outcome.directions[direction]
    return CodecCosts(
        encode=Line(seconds["encode"] / outcome.steps),
        decode=Line(seconds["decode"] / outcome.steps),
        ratio=RatioCurve.of({rows: volume.ratio}),
        has_sizes=seconds["sizes"] > 0,
    )


def links_cells(links: Mapping[str, Any]) -> list[list[str]]:
    """Return the cells of ``LINKS_HEAD``, one line per link."""
    return [
        [
            f"{step['gbit_s']:g}", f"{1e3 * step['uncompressed_s']:.1f}",
            f"{1e3 * step['adaptive_s']:.1f}", f"{step['speedup']:.2f}",
        ]
        for step in links["steps"]
    ]  # fmt: skip


def links_sentence(links: Mapping[str, Any]) -> str:
    """Describe in two short sentences how much faster or slower a step would be."""
    steps, pays = links["steps"], links["pays_up_to_gbit_s"]
    named = " / ".join(f"{step['gbit_s']:g}" for step in steps)
    gains = " / ".join(f"{step['speedup']:.2f}" for step in steps)
    slower = ": slower where below 1" if any(step["speedup"] < 1 for step in steps) else ""
    where = (
        f"up to {pays:.3g} Gbit/s" if pays else "on every link" if pays is None else "on no link"
    )
    return (
        f"On a link of {named} Gbit/s a step would be {gains} times as fast with compression{slower}. "
        f"It pays {where}."
    )
