"""The ``embeddings`` suite: exchanges between real ranks on throttled links, and steps with them.

Every rank is a process, if possible in its own network namespace. No time is reported before the decoded
rows were compared with the exact ones. All contenders run in turn, round after round, and the time of a
round is that of its slowest rank.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from tersor.bench.core import machine
from tersor.bench.core.exchange_times import DIRECTIONS, ExchangeTimes
from tersor.bench.core.outcome import SuiteOutcome, ignore
from tersor.bench.core.rows import ExchangeRow, ResultRow, row_identity, row_key
from tersor.bench.core.timing import Percentiles
from tersor.bench.embeddings.contenders import (
    BASELINE,
    BOUNDED,
    CONTENDERS,
    NOTES,
    described,
    make_contender,
)
from tersor.errors import SpecError
from tersor.types import bound_share
from tersor.workloads.data.clicks import NUM_TABLES
from tersor.workloads.models.dlrm import PRESETS
from tersor.workloads.network import (
    Bandwidth,
    Loopback,
    RankProcesses,
    open_best_network,
)
from tersor.workloads.network.exchange_case import Case, measuring

_SET_UP_TIMEOUT_S: Final = 600.0
_CASE_TIMEOUT_S: Final = 600.0
_ROUNDS_MAX_S: Final = 120.0
_UNTHROTTLED: Final = Bandwidth(10**10)
"""The bandwidth for which codecs are chosen on loopback."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingsConfig:
    """What to measure.

    Attributes:
        num_ranks: processes that exchange.
        ranks_per_node: ranks that share a node and its link.
        bandwidths: bandwidths of each node's link, measured one after the other.
        batches: samples of all ranks per step, measured one after the other.
        contenders: names from ``CONTENDERS``; the baseline is always measured.
        preset: name of the model's sizes.
        dim: values per row; None for the preset's value.
        max_rows: the most rows per table of the synthetic click log.
        warm_steps: training steps before measuring, so that look-ups come from a model in training.
        rounds: timed rounds.
        seed: seed of the log and the model.
    """

    num_ranks: int = 4
    ranks_per_node: int = 1
    bandwidths: tuple[Bandwidth, ...] = (Bandwidth(10**9),)
    batches: tuple[int, ...] = (2048,)
    contenders: tuple[str, ...] = CONTENDERS
    preset: str = "terabyte"
    dim: int | None = None
    max_rows: int = 100_000
    warm_steps: int = 50
    rounds: int = 9
    seed: int = 0

    def __post_init__(self) -> None:
        """Reject an empty or impossible plan, and add the baseline if it is missing."""
        if self.preset not in PRESETS:
            raise SpecError(f"the preset must be one of {', '.join(PRESETS)}, not {self.preset!r}")
        if not 2 <= self.num_ranks <= NUM_TABLES:
            raise SpecError(
                f"an exchange has 2 to {NUM_TABLES} ranks, one table at least each, "
                f"not {self.num_ranks}"
            )
        if not 1 <= self.ranks_per_node < self.num_ranks:
            raise SpecError(
                f"a node holds 1 to {self.num_ranks - 1} of {self.num_ranks} ranks, or no link between "
                f"nodes is used, not {self.ranks_per_node}"
            )
        if not self.bandwidths or not self.batches or self.rounds < 1 or self.warm_steps < 0:
            raise SpecError("name at least one bandwidth, one batch and one round")
        for batch in self.batches:
            if batch < self.num_ranks or batch % self.num_ranks:
                raise SpecError(f"a batch of {batch} cannot be shared by {self.num_ranks} ranks")
        for name in self.contenders:
            make_contender(name, self.width)
        if BASELINE not in self.contenders:
            object.__setattr__(self, "contenders", (BASELINE, *self.contenders))

    @property
    def width(self) -> int:
        """Values per row."""
        return PRESETS[self.preset].shape.dim if self.dim is None else self.dim

    @property
    def model(self) -> str:
        """The name of the model in rows."""
        own = f"dlrm-{self.preset}"
        return own if self.dim is None else f"{own}-dim{self.dim}"

    def smoke(self) -> EmbeddingsConfig:
        """Return a plan that shows in seconds that all runs: two nodes, one tiny case."""
        per_node = min(2, self.ranks_per_node)
        return replace(
            self, num_ranks=2 * per_node, ranks_per_node=per_node, bandwidths=self.bandwidths[:1], batches=(64,), preset="small",
            dim=None, max_rows=200, warm_steps=1, rounds=1,
        )  # fmt: skip

    def settings(self) -> dict[str, Any]:
        """Return the settings that every rank receives once."""
        options = {"max_rows": self.max_rows, "seed": self.seed}
        return {
            "preset": self.preset, "dim": self.width, "data": "synthetic", "data_options": options, "seed": self.seed,
            "batch": max(self.batches), "warm_steps": self.warm_steps,
        }  # fmt: skip


def run_embeddings(
    config: EmbeddingsConfig,
    *,
    done: frozenset[str] = frozenset(),
    on_row: Callable[[ResultRow], None] = ignore,
    on_note: Callable[[str], None] = ignore,
    on_case: Callable[[int, int, str], None] = ignore,
) -> SuiteOutcome:
    """Measure everything in ``config``; if links cannot be throttled, measure once on loopback.

    Args:
        config: the plan.
        done: keys of rows that exist already; a case is skipped if all its rows do.
        on_row: called with each finished row; write it to disk here.
        on_note: called with one sentence for each fact a reader must know.
        on_case: called with (finished cases, all cases, label) before each case starts.

    Raises:
        ExchangeError: a rank failed; all processes have been ended.
    """
    outcome = SuiteOutcome(done, on_row, on_note)
    with open_best_network(config.num_ranks, config.ranks_per_node, outcome.note) as network:
        suite = _Suite(config, network.kind)
        wanted = [place for place in suite.places if not suite.keys(*place) <= done]
        if not wanted:
            return outcome
        on_case(0, len(wanted), f"training for {config.warm_steps} steps")
        with RankProcesses(measuring, network, config.num_ranks) as ranks:
            ranks.set_up(config.settings(), _SET_UP_TIMEOUT_S)
            for index, (link, batch) in enumerate(wanted):
                on_case(index, len(wanted), f"{link or network.kind}, batch {batch}")
                network.throttle(link or _UNTHROTTLED)
                gbit_s, asked = (link or _UNTHROTTLED).gbit_s, tuple(suite.contenders)
                case = Case(batch, gbit_s, config.rounds, _ROUNDS_MAX_S, asked)
                answers = ranks.ask(case, _CASE_TIMEOUT_S)
                for row in suite.rows(link, batch, answers, outcome):
                    outcome.add(row)
    for sentence in outcome.refusals:
        outcome.note(sentence)
    on_case(len(wanted), len(wanted), "done")
    return outcome


class _Suite:
    """One plan on one kind of network."""

    def __init__(self, config: EmbeddingsConfig, network: str) -> None:
        self.config, self.network = config, network
        self.contenders = [make_contender(name, config.width) for name in config.contenders]
        # loopback has no nodes
        self.ranks_per_node = config.ranks_per_node if network != Loopback.kind else 1
        links = config.bandwidths if network != Loopback.kind else (None,)
        self.places = [(link, batch) for link in links for batch in config.batches]

    def keys(self, link: Bandwidth | None, batch: int) -> frozenset[str]:
        """Return the keys of all rows of a case."""
        return frozenset(
            row_key(**self._identity(contender, link, batch, direction))
            for contender in self.contenders
            for direction in DIRECTIONS
        )

    def _identity(
        self, contender: Any, link: Bandwidth | None, batch: int, direction: str
    ) -> dict[str, Any]:
        config = self.config
        version, spec = described(contender, direction)
        return row_identity(
            suite="embeddings", codec=contender.name, version=version, spec=spec,
            input=config.model, device="cpu", num_values=batch * NUM_TABLES * config.width,
            threads=max(1, (os.cpu_count() or 1) // config.num_ranks),
            group=f"{direction}, {self._place(link)}",
        )  # fmt: skip

    def _place(self, link: Bandwidth | None) -> str:
        per_node = "" if self.ranks_per_node == 1 else f", {self.ranks_per_node} per node"
        return f"{self.config.num_ranks} ranks{per_node}, {link or self.network}"

    def rows(
        self,
        link: Bandwidth | None,
        batch: int,
        answers: Sequence[Mapping[str, Any]],
        outcome: SuiteOutcome,
    ) -> Iterator[ExchangeRow]:
        """Yield two rows for each contender that neither broke its bound nor lost values."""
        for contender in self.contenders:
            ranks = [answer[contender.name] for answer in answers]
            error, bound = max((one["worst"] for one in ranks), key=lambda pair: bound_share(*pair))
            is_bounded = contender.name in BOUNDED
            if is_bounded and not error <= bound:
                outcome.refusals.append(
                    f"{contender.name} is refused: error {error:.9g} where {bound:.9g} was promised"
                )
                continue
            if math.isinf(error):
                outcome.note(f"left out: {contender.name}: it lost values of the look-ups")
                continue
            for direction in DIRECTIONS:
                is_forward = direction == "forward"
                nbytes = [one["nbytes"][direction] for one in ranks]
                yield ExchangeRow(
                    **self._identity(contender, link, batch, direction),
                    original_nbytes=sum(original for original, _ in nbytes),
                    encoded_nbytes=sum(encoded for _, encoded in nbytes),
                    worst_error=error if is_forward else None,
                    error_bound=bound if is_forward and is_bounded else None,
                    note=self._note(contender.name, ranks, is_forward=is_forward),
                    versions=machine.versions(),
                    machine=machine.machine(torch.device("cpu")),
                    **self._times(link, batch, ranks, direction),
                )

    def _note(self, name: str, ranks: Sequence[Mapping[str, Any]], *, is_forward: bool) -> str:
        words = [] if self.network != Loopback.kind else ["loopback, not throttled"]
        if name == "auto" and is_forward:
            counts = sum((Counter(one["choices"]) for one in ranks), Counter[str]())
            words.append(
                "tables: " + ", ".join(f"{n} {codec}" for codec, n in sorted(counts.items()))
            )
        return "; ".join([*words, *([NOTES[name]] if name in NOTES else [])])

    def _times(
        self,
        link: Bandwidth | None,
        batch: int,
        ranks: Sequence[Mapping[str, Any]],
        direction: str,
    ) -> dict[str, Any]:
        """Return the times and phases of the slowest rank of every round."""
        wholes = zip(*(one[direction]["seconds"] for one in ranks), strict=True)
        slowest = [max(range(len(whole)), key=whole.__getitem__) for whole in wholes]

        def of(phase: str) -> Percentiles:
            rounds = enumerate(slowest)
            return Percentiles.of([ranks[r][direction]["phases"][k][phase] for k, r in rounds])

        exchange = ExchangeTimes(
            direction=direction,
            network=self.network,
            link=None if link is None else str(link),
            num_ranks=self.config.num_ranks,
            ranks_per_node=self.ranks_per_node,
            batch=batch,
            sizes_s=of("sizes"),
            payload_s=of("payload"),
            exchange_s=Percentiles.of(
                [ranks[r][direction]["seconds"][k] for k, r in enumerate(slowest)]
            ),
            step_s=Percentiles.of(
                [max(steps) for steps in zip(*(one["step"] for one in ranks), strict=True)]
            ),
        )
        return {"encode_s": of("encode"), "decode_s": of("decode"), "exchange": exchange}
