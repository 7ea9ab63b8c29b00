"""The ``shards`` suite: steps of a GPT whose ranks exchange weights and gradients over throttled links.

Every rank is a process. If possible, nodes are network namespaces whose ranks share a link. All variants of the
start from the same weights and take the same steps. Times are only reported for variants whose loss
agrees with that of float32. The variants run in turn, round after round, and the time of a round is that of its
slowest rank. Bytes are those that the nodes' network interfaces counted.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final

import torch

from tersor.bench.core import machine
from tersor.bench.core.blocks import Estimate, Quality
from tersor.bench.core.outcome import SuiteOutcome, ignore
from tersor.bench.core.rows import ResultRow, ShardRow, row_identity, row_key
from tersor.bench.core.shard_times import ShardPart, ShardTimes
from tersor.bench.core.timing import Percentiles
from tersor.bench.shards.contenders import BASELINES, NOTES, OURS, VARIANTS, described, make_variant
from tersor.errors import SpecError
from tersor.workloads.models.gpt import PRESETS, GptShape
from tersor.workloads.network import Bandwidth, Loopback, RankProcesses, open_best_network
from tersor.workloads.network.namespaces import INTERFACE, MAX_RANKS
from tersor.workloads.network.shard_case import ShardCase, measuring
from tersor.workloads.network.shard_variants import ExchangeVariant

_SET_UP_TIMEOUT_S: Final = 600.0
_CASE_TIMEOUT_S: Final = 1200.0
_ROUNDS_MAX_S: Final = 300.0
_UNTHROTTLED: Final = Bandwidth(10**10)
_SMOKE: Final = GptShape(2, 64, 2, 32, 256)
_MOST_LOSS: Final = 0.05
"""Largest accepted deviation of a loss, relative to that of float32 after the same steps."""
_LOOPBACK: Final = "lo"


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardsConfig:
    """What to measure.

    Attributes:
        num_ranks: processes that train together.
        ranks_per_node: ranks that share a node and its link.
        bandwidths: bandwidths of each node's link, measured one after the other.
        batch: sequences of all ranks per step; 0 for one per rank.
        variants: names from ``VARIANTS``; float32 with the same wrapper is always measured.
        preset: name of the model's sizes.
        rounds: timed rounds.
        seed: seed of the text and the model.
        is_smoke: whether a tiny model replaces the preset.
    """

    num_ranks: int = 4
    ranks_per_node: int = 2
    bandwidths: tuple[Bandwidth, ...] = (Bandwidth(10**9),)
    batch: int = 0
    variants: tuple[str, ...] = tuple(VARIANTS)
    preset: str = "10M"
    rounds: int = 5
    seed: int = 0
    is_smoke: bool = False

    def __post_init__(self) -> None:
        """Reject an empty or impossible plan, add missing baselines, and resolve the batch."""
        if self.preset not in PRESETS:
            raise SpecError(f"the preset must be one of {', '.join(PRESETS)}, not {self.preset!r}")
        if not 2 <= self.num_ranks <= MAX_RANKS:
            raise SpecError(f"a training has 2 to {MAX_RANKS} ranks, not {self.num_ranks}")
        each = self.ranks_per_node
        if not 1 <= each < self.num_ranks or self.num_ranks % each:
            raise SpecError(
                f"nodes hold equally many of the {self.num_ranks} ranks, and there are two at least, so "
                f"that a node cannot hold {each}"
            )
        if not self.bandwidths or self.rounds < 1:
            raise SpecError("name at least one bandwidth and one round")
        if self.batch < 0 or self.batch % self.num_ranks:
            raise SpecError(f"a batch of {self.batch} cannot be shared by {self.num_ranks} ranks")
        needed = {BASELINES[make_variant(name).wrapper] for name in self.variants}
        wanted = {*needed, *self.variants}
        if not wanted:
            raise SpecError("name at least one exchange method")
        object.__setattr__(self, "variants", tuple(name for name in VARIANTS if name in wanted))
        object.__setattr__(self, "batch", self.batch or self.num_ranks)

    @property
    def shape(self) -> GptShape:
        """The shape of the model, whose tokens are bytes."""
        return _SMOKE if self.is_smoke else replace(PRESETS[self.preset].shape, vocabulary=256)

    @property
    def model(self) -> str:
        """The name of the model in rows."""
        return "gpt-smoke" if self.is_smoke else f"gpt-{self.preset}"

    def smoke(self) -> ShardsConfig:
        """Return a plan that shows in seconds that all runs: a tiny model, one link, one round."""
        return replace(self, is_smoke=True, bandwidths=self.bandwidths[:1], rounds=1)


def run_shards(
    config: ShardsConfig,
    *,
    done: frozenset[str] = frozenset(),
    on_row: Callable[[ResultRow], None] = ignore,
    on_note: Callable[[str], None] = ignore,
    on_case: Callable[[int, int, str], None] = ignore,
) -> SuiteOutcome:
    """Measure everything in ``config``; if links cannot be throttled, measure once on loopback.

    Args:
        config: the plan.
        done: keys of rows that exist already; a link is skipped if all its rows do.
        on_row: called with each finished row; write it to disk here.
        on_note: called with one sentence for each fact a reader must know.
        on_case: called with (finished links, all links, label) before each link.

    Raises:
        ExchangeError: a rank failed; all processes have been ended.
    """
    outcome = SuiteOutcome(done, on_row, on_note)
    with open_best_network(config.num_ranks, config.ranks_per_node, outcome.note) as network:
        suite = _Suite(config, network.kind)
        links = config.bandwidths if network.kind != Loopback.kind else (None,)
        wanted = [link for link in links if not suite.keys(link) <= done]
        if not wanted:
            return outcome
        for index, link in enumerate(wanted):
            on_case(index, len(wanted), f"making {len(suite.variants)} trainings")
            # new ranks per link, because connections keep the segment size of the link they began on
            with RankProcesses(measuring, network, config.num_ranks) as ranks:
                # the first steps are not measured, so they need not wait for a slow link
                network.throttle(_UNTHROTTLED, connecting_for=link)
                ranks.set_up(suite.settings(), _SET_UP_TIMEOUT_S)
                on_case(index, len(wanted), str(link or network.kind))
                network.throttle(link or _UNTHROTTLED)
                answers = ranks.ask(ShardCase(config.rounds, _ROUNDS_MAX_S), _CASE_TIMEOUT_S)
            for row in suite.rows(link, answers, outcome):
                outcome.add(row)
    for sentence in outcome.refusals:
        outcome.note(sentence)
    on_case(len(wanted), len(wanted), "done")
    return outcome


class _Suite:
    """One plan on one kind of network."""

    def __init__(self, config: ShardsConfig, network: str) -> None:
        self.config, self.network = config, network
        self.variants = tuple(make_variant(name) for name in config.variants)

    def settings(self) -> dict[str, Any]:
        """Return the settings that every rank receives once."""
        config = self.config
        return {
            "shape": config.shape, "batch": config.batch, "seed": config.seed,
            "ranks_per_node": config.ranks_per_node, "variants": self.variants,
        }  # fmt: skip

    def keys(self, link: Bandwidth | None) -> frozenset[str]:
        """Return the keys of all rows of a link."""
        return frozenset(row_key(**self._identity(variant, link)) for variant in self.variants)

    def _identity(self, variant: ExchangeVariant, link: Bandwidth | None) -> dict[str, Any]:
        config = self.config
        version, spec = described(variant)
        place = f"{config.num_ranks} ranks, {config.ranks_per_node} per node"
        return row_identity(
            suite="shards", codec=variant.name, version=version, spec=spec, input=config.model,
            device="cpu", num_values=config.shape.num_parameters,
            threads=max(1, (os.cpu_count() or 1) // config.num_ranks),
            group=f"batch {config.batch}, {place}, {link or self.network}",
        )  # fmt: skip

    def rows(
        self, link: Bandwidth | None, answers: Sequence[Mapping[str, Any]], outcome: SuiteOutcome
    ) -> Iterator[ShardRow]:
        """Yield a row for each variant whose loss agrees with float32's."""
        losses = {
            variant.name: _loss([one[variant.name] for one in answers]) for variant in self.variants
        }
        for variant in self.variants:
            exact, loss = losses[BASELINES[variant.wrapper]], losses[variant.name]
            if not abs(loss / exact - 1) <= _MOST_LOSS:
                sentence = (
                    f"{variant.name} is refused: its loss after the same steps is {loss:.4g}, that of float32 "
                    f"{exact:.4g}"
                )
                (outcome.refusals.append if variant.name in OURS else outcome.note)(sentence)
                continue
            yield self._row(variant, link, [one[variant.name] for one in answers], loss)

    def _row(
        self,
        variant: ExchangeVariant,
        link: Bandwidth | None,
        ranks: Sequence[Mapping[str, Any]],
        loss: float,
    ) -> ShardRow:
        times = self._times(variant, link, ranks)
        parts = [part for part in (times.weights, times.gradients) if part is not None]
        is_linked = link is not None
        num_far = self.config.num_ranks // self.config.ranks_per_node - 1
        sent = [part.link_nbytes or 0 if is_linked else part.node_nbytes for part in parts]
        notes = [] if is_linked else ["loopback, not throttled; bytes are of all ranks"]
        notes += [NOTES[variant.name]] if variant.name in NOTES else []
        coding = Percentiles.of(_slowest([[x["coding"] for x in r["exchanges"]] for r in ranks]))
        return ShardRow(
            **self._identity(variant, link),
            original_nbytes=4 * self.config.shape.num_parameters * num_far * len(parts),
            encoded_nbytes=sum(sent),
            worst_error=None,
            error_bound=None,
            encode_s=coding,
            decode_s=Percentiles(0.0, 0.0, 0.0),
            peer=variant.name not in OURS,
            quality=Quality(loss=Estimate(mean=loss)),
            note="; ".join(notes),
            versions=machine.versions(),
            machine=machine.machine(torch.device("cpu")),
            shards=times,
        )

    def _times(
        self, variant: ExchangeVariant, link: Bandwidth | None, ranks: Sequence[Mapping[str, Any]]
    ) -> ShardTimes:
        config = self.config
        wholes = [[sum(x["seconds"].values()) for x in rank["exchanges"]] for rank in ranks]
        steps = [[x["seconds"] for x in rank["steps"]] for rank in ranks]
        return ShardTimes(
            wrapper=variant.wrapper,
            network=self.network,
            link=None if link is None else str(link),
            num_ranks=config.num_ranks,
            ranks_per_node=config.ranks_per_node,
            batch=config.batch,
            tokens=config.batch * config.shape.context,
            step_s=Percentiles.of(_slowest(steps)),
            exchange_s=Percentiles.of(_slowest(wholes)),
            weights=self._part("weights", ranks) if variant.wrapper == "fsdp" else None,
            gradients=self._part("gradients", ranks),
        )

    def _part(self, name: str, ranks: Sequence[Mapping[str, Any]]) -> ShardPart:
        has_links = self.network != Loopback.kind
        # one rank per node, because all ranks of a node read the same counters
        firsts = ranks[:: self.config.ranks_per_node] if has_links else ranks[:1]
        seconds = [[x["seconds"][name] for x in rank["exchanges"]] for rank in ranks]

        def sent(interface: str) -> int:
            counts = [[x["nbytes"][name][interface] for x in r["exchanges"]] for r in firsts]
            return int(median(sum(one) for one in zip(*counts, strict=True)))

        return ShardPart(
            seconds=Percentiles.of(_slowest(seconds)),
            link_nbytes=sent(INTERFACE) if has_links else None,
            node_nbytes=sent(_LOOPBACK),
        )


def _slowest(ranks: Sequence[Sequence[float]]) -> list[float]:
    """Return the longest time of each round."""
    return [max(times) for times in zip(*ranks, strict=True)]


def _loss(ranks: Sequence[Mapping[str, Any]]) -> float:
    """Return the mean loss of all ranks in the last of their first steps; infinite if not finite."""
    found = sum(rank["losses"][-1] for rank in ranks) / len(ranks)
    return found if math.isfinite(found) else math.inf
