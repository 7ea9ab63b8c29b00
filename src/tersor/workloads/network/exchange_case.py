"""Measurements of one rank: interleaved exchanges of the same rows and gradients, and training steps."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
import torch.distributed as dist

from tersor.codecs import registry
from tersor.codecs.codec import Codec
from tersor.comm import Stopwatch, gathered
from tersor.sites.embeddings import AdaptiveBounds, Decay, Exchange, classify
from tersor.types import bound_share
from tersor.workloads.data.clicks import ClickBatch
from tersor.workloads.data.opening import open_clicks
from tersor.workloads.dlrm import DlrmConfig, DlrmRun
from tersor.workloads.models.dlrm import PRESETS
from tersor.workloads.training.learning_rate import LearningRate

_STILL: Final = 1e-30
"""Learning rate of measured steps: they do all the work but leave the model unchanged."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One configuration of the exchange.

    Attributes:
        name: of the contender.
        forward: codec of rows: an id, ``"auto"``, or the config of a codec.
        backward: codec of gradients: an id, ``"none"``, or a config.
    """

    name: str
    forward: str | Mapping[str, Any]
    backward: str | Mapping[str, Any]

    def exchange(self, run: DlrmRun, bounds: AdaptiveBounds, bandwidth_gbit_s: float) -> Exchange:
        """Create the exchange; a collective call."""
        return Exchange(
            run.owners, run.config.shape.dim, bounds=bounds, codec=_codec(self.forward),
            backward=_codec(self.backward), bandwidth_gbit_s=bandwidth_gbit_s,
        )  # fmt: skip


def _codec(spec: str | Mapping[str, Any]) -> str | Codec:
    return spec if isinstance(spec, str) else registry.from_config(spec)


@dataclass(frozen=True, slots=True)
class Case:
    """One batch size on one link.

    Attributes:
        batch: samples of all ranks.
        bandwidth_gbit_s: of each rank's link, 10**9 bits per second, for choosing codecs.
        rounds: most rounds; each times every contender once.
        max_s: time after which no further round begins; at least one is run.
        contenders: the configurations to time.
    """

    batch: int
    bandwidth_gbit_s: float
    rounds: int
    max_s: float
    contenders: tuple[Contender, ...]


def measuring(**settings: Any) -> Callable[[Case], dict[str, Any]]:
    """Create a ``Bench`` on a rank of ``RankProcesses``; the function returned answers each ``Case``."""
    return Bench(**settings).measure


class Bench:
    """A model trained for some steps, whose look-ups and gradients are exchanged."""

    def __init__(
        self, *, preset: str, dim: int, data: str, data_options: dict[str, Any], seed: int,
        batch: int, warm_steps: int,
    ) -> None:  # fmt: skip
        """Train a model for ``warm_steps`` with an uncompressed exchange; a collective call.

        Args:
            preset: sizes of the dense networks.
            dim: values per row.
            data: source for ``open_clicks``.
            data_options: options of ``open_clicks``.
            seed: of the weights.
            batch: samples of all ranks per step.
            warm_steps: number of training steps.
        """
        self.source = open_clicks(data, **data_options)
        known = PRESETS[preset]
        config = DlrmConfig(
            shape=replace(known.shape, num_rows=self.source.num_rows, dim=dim),
            batch=batch, steps=warm_steps, learning_rate=known.learning_rate, seed=seed,
            codec="raw", backward="none",
        )  # fmt: skip
        self.run = DlrmRun(config, self.source)
        self._plain = self.run.exchange
        for _ in range(warm_steps):
            self.run.step()
        self.run.learning_rate = LearningRate(_STILL)

    def measure(self, case: Case) -> dict[str, Any]:
        """Check and time all contenders; a collective call.

        Returns:
            Per contender: the bytes this rank sent per direction; the seconds of every round, per
            direction and for whole steps; the worst error of decoded rows and its bound; and the
            number of tables per codec.
        """
        batch = self.source.read("train", 0, case.batch)
        with torch.no_grad():
            rows = [x.requires_grad_() for x in self.run.model.look_up(batch.ids)]
            exact = self._plain(rows)
        gradients = self._gradients(batch)
        bounds = self._bounds(rows)
        found: dict[str, Any] = {}
        timed: list[_Timed] = []
        for contender in case.contenders:
            exchange = contender.exchange(self.run, bounds, case.bandwidth_gbit_s)
            one = _Timed(exchange, rows, gradients)
            # the first use compiles kernels and chooses codecs, so it is checked but not timed
            worst = self._worst(one.checked(), exact, bounds)
            codecs = (exchange.plan.codec(table, 1).codec_id for table in exchange.tables)
            found[contender.name] = {"worst": worst, "choices": dict(Counter(codecs))}
            timed.append(one)
        with _no_garbage_collection():
            for is_counted in _rounds(case):
                for one in timed:
                    self.run.exchange = one.exchange
                    one.round(partial(self.run.step, batch), is_counted)
        for contender, one in zip(case.contenders, timed, strict=True):
            found[contender.name] |= one.found
            one.exchange.close()
        self.run.exchange = self._plain
        return found

    def _gradients(self, batch: ClickBatch) -> list[torch.Tensor]:
        """Return the gradients of all tables' rows for this rank's samples.

        A step yields the gradients of this rank's tables for all samples. An exchange then returns
        each to the rank of its sample.
        """
        own, model = self.run.ranks.share(len(batch)), self.run.model
        looked_up: list[torch.Tensor] = []
        hooks = [
            model.tables[str(table)].register_forward_hook(lambda _m, _i, x: looked_up.append(x))
            for table in model.table_numbers
        ]
        logits = model(batch, self._plain, own)
        for hook in hooks:
            hook.remove()
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            logits, batch.labels[own], reduction="sum"
        )
        found = torch.autograd.grad(losses / len(batch), looked_up)
        with torch.no_grad():
            return self._plain(list(found))

    def _bounds(self, rows: Sequence[torch.Tensor]) -> AdaptiveBounds:
        """Return default bounds, with tables classified by the look-ups of all ranks."""
        tables = self.run.model.table_numbers
        num_rows = [self.run.config.shape.num_rows[table] for table in tables]
        classes = [one.table_class for one in classify(rows, num_rows)]
        every = gathered(dict(zip(tables, classes, strict=True)), None)
        named = {table: name for found in every for table, name in found.items()}
        return AdaptiveBounds(
            tight=frozenset(table for table, name in named.items() if name == "tight"),
            loose=frozenset(table for table, name in named.items() if name == "loose"),
            decay=Decay.off(),
        )

    @staticmethod
    def _worst(
        decoded: Sequence[torch.Tensor], exact: Sequence[torch.Tensor], bounds: AdaptiveBounds
    ) -> tuple[float, float]:
        """Return error and bound of the table with the largest error relative to its bound."""
        found = []
        for table, (x, y) in enumerate(zip(exact, decoded, strict=True)):
            error = float((x.double() - y.double()).abs().max())
            bound = bounds.bound(table, 0).resolve(float(x.min()), float(x.max()))
            # NaN would not compare as larger, so it counts as infinite
            found.append((error if error == error else float("inf"), bound))  # noqa: PLR0124
        return max(found, key=lambda pair: bound_share(*pair))


class _Timed:
    """One contender with its measurements so far.

    Attributes:
        exchange: of the contender.
        found: bytes per direction, seconds and phases of each round, and seconds of whole steps.
    """

    def __init__(
        self, exchange: Exchange, rows: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]
    ) -> None:
        self.exchange, self._rows, self._gradients = exchange, rows, list(gradients)
        self.found: dict[str, Any] = {
            "nbytes": {},
            "forward": {"seconds": [], "phases": []},
            "backward": {"seconds": [], "phases": []},
            "step": [],
        }

    def checked(self) -> list[torch.Tensor]:
        """Exchange once; return the decoded rows, and record the bytes of both directions."""
        decoded = self.exchange(self._rows)
        torch.autograd.backward(decoded, self._gradients)
        stats = self.exchange.stats
        for name, volume in (("forward", stats.forward), ("backward", stats.backward)):
            self.found["nbytes"][name] = (volume.original_nbytes, volume.encoded_nbytes)
        return [x.detach() for x in decoded]

    def round(self, step: Callable[[], Any], is_counted: bool) -> None:
        """Exchange forward and backward, and take a step; times are recorded if ``is_counted``."""
        stats, decoded = self.exchange.stats, list[torch.Tensor]()
        tasks = (
            ("forward", lambda: decoded.extend(self.exchange(self._rows)), stats.forward_times),
            (
                "backward",
                lambda: torch.autograd.backward(decoded, self._gradients),
                stats.backward_times,
            ),
        )
        timed = [(name, *_clocked(task, watch)) for name, task, watch in tasks]
        whole_s, _ = _clocked(step, stats.forward_times)
        if is_counted:
            for name, seconds, phases in timed:
                self.found[name]["seconds"].append(seconds)
                self.found[name]["phases"].append(phases)
            self.found["step"].append(whole_s)


def _rounds(case: Case) -> Iterator[bool]:
    """Yield whether each round counts; the first is a warm-up. All ranks run equally many rounds."""
    begin = time.perf_counter()
    yield False
    for number in range(case.rounds):
        seconds = max(gathered(time.perf_counter() - begin, None))
        if number and seconds > case.max_s:
            return
        yield True


def _clocked(task: Callable[[], Any], watch: Stopwatch) -> tuple[float, dict[str, float]]:
    """Start a task on all ranks together; return its seconds, and those of its phases."""
    before = watch.read()
    dist.barrier()
    begin = time.perf_counter()
    task()
    seconds = time.perf_counter() - begin
    return seconds, {name: after - before[name] for name, after in watch.read().items()}


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
