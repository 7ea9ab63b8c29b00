"""The ``accuracy-gpt`` suite: train the same GPT with every scheme, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import Any, Final

import torch

from tersor import __version__
from tersor.bench.core import machine
from tersor.bench.core.blocks import Estimate, Quality
from tersor.bench.core.outcome import SuiteOutcome, ignore
from tersor.bench.core.rows import ResultRow, TrainingRow, row_identity
from tersor.bench.core.timing import Percentiles
from tersor.bench.core.training_facts import TrainingFacts
from tersor.bench.core.training_jobs import train_all
from tersor.bench.core.training_place import EXACT
from tersor.errors import SpecError
from tersor.workloads.data.tokens import TokenSource
from tersor.workloads.gpt import GptConfig, GptRun
from tersor.workloads.gpt.schemes import SCHEMES
from tersor.workloads.models.gpt import GptShape
from tersor.workloads.training.comparison import train_settings
from tersor.workloads.training.judgement import Outcome

SUITE: Final = "accuracy-gpt"
_HARMFUL: Final = "direct"
"""A scheme that is trained to show its harm, and that may therefore diverge."""
_SMOKE: Final = GptShape(layers=1, width=32, heads=2, context=16, vocabulary=256)
DEFAULT_SCHEMES: Final = (EXACT, "direct", "qwd", "ulq", "tlq", "tlq-hs", "both")


@dataclass(frozen=True, kw_only=True, slots=True)
class AccuracyConfig:
    """What to train.

    Attributes:
        training: the config that all runs share. Its scheme and seed are replaced. If its ``ranks``
            are more than one, they share a process.
        model: name of the model.
        schemes: names from ``SCHEMES``; ``exact``, the reference, is always trained.
        seeds: every scheme is trained with each of them.
        processes: processes that train together through gloo; 1 if the ranks share a process.
        device: device to train on.
        jobs: training runs at the same time.
        num_evals: points of each curve.
        eval_samples: validation sequences over which a loss is averaged; all if None.
    """

    training: GptConfig
    model: str
    schemes: tuple[str, ...] = DEFAULT_SCHEMES
    seeds: tuple[int, ...] = (0, 1, 2)
    processes: int = 1
    device: str = "cpu"
    jobs: int = 1
    num_evals: int = 10
    eval_samples: int | None = None

    def __post_init__(self) -> None:
        """Reject a plan that cannot be trained, and put ``exact`` first."""
        for name in self.schemes:
            if name not in SCHEMES:
                raise SpecError(f"schemes are {', '.join(SCHEMES)}, not {name!r}")
        if not self.seeds or min(self.processes, self.jobs, self.num_evals) < 1:
            raise SpecError("name at least one seed, process, job and evaluation")
        if self.num_ranks < 2:
            raise SpecError("ranks exchange nothing when there is one; give two or more")
        if self.processes > 1 and self.training.ranks > 1:
            raise SpecError("ranks share one process or have one each; give one of both numbers")
        self.training.check_nodes(self.num_ranks)
        if self.training.batch % (self.num_ranks * self.training.accumulation):
            raise SpecError(
                f"a batch of {self.training.batch} cannot be shared by {self.num_ranks} ranks; choose a "
                "multiple of them"
            )
        object.__setattr__(self, "schemes", tuple(dict.fromkeys((EXACT, *self.schemes))))

    @property
    def num_ranks(self) -> int:
        """The number of ranks that train together."""
        return max(self.processes, self.training.ranks)

    @property
    def ranks_in_words(self) -> str:
        """The number of ranks and how they communicate, in words."""
        return f"{self.num_ranks} {'gloo' if self.processes > 1 else 'memory'} ranks"

    def smoke(self) -> AccuracyConfig:
        """Return a plan that shows in seconds that all runs: a tiny model, two ranks, one seed."""
        is_gloo = self.processes > 1
        training = replace(
            self.training,
            shape=replace(_SMOKE, vocabulary=self.training.shape.vocabulary),
            batch=4, steps=4, decay_steps=0, accumulation=1,
            ranks=1 if is_gloo else 2, ranks_per_node=1,
        )  # fmt: skip
        return replace(
            self, training=training, model="gpt-smoke", seeds=self.seeds[:1],
            processes=2 if is_gloo else 1, num_evals=1, eval_samples=16,
        )  # fmt: skip

    def config(self, scheme: str, seed: int) -> GptConfig:
        """Return the config of one training run."""
        return replace(self.training, scheme=scheme, seed=seed)


def run_accuracy(
    config: AccuracyConfig,
    source: TokenSource,
    *,
    done: frozenset[str] = frozenset(),
    on_row: Callable[[ResultRow], None] = ignore,
    on_note: Callable[[str], None] = ignore,
    progress: Callable[[int, int, str], None] = ignore,
) -> SuiteOutcome:
    """Train every scheme with every seed.

    Args:
        config: the plan.
        source: the text of all runs.
        done: keys of rows that exist already, which are not trained again.
        on_row: called with the row of each training run as soon as it is done; write it to disk here.
        on_note: called with one sentence for each fact a reader must know.
        progress: called with (steps done, total steps, a word).

    Raises:
        ExchangeError: a training run failed, and the runs in progress have ended.
    """
    outcome = SuiteOutcome(done, on_row, on_note)
    suite = _Suite(config, source)
    wanted = [one for one in suite.trainings() if not outcome.is_done(suite.identity(*one))]

    def keep(setting: tuple[str, int], row: TrainingRow | str) -> None:
        if not isinstance(row, str):
            outcome.add(row)
            return
        outcome.note(row)
        if setting[0] not in (EXACT, _HARMFUL):
            outcome.refusals.append(row)

    train_all(
        wanted, suite.row, jobs=config.jobs, steps=config.training.steps, progress=progress,
        on_result=keep,
    )  # fmt: skip
    return outcome


class _Suite:
    """One plan on one text."""

    def __init__(self, config: AccuracyConfig, source: TokenSource) -> None:
        self.config, self.source = config, source

    def trainings(self) -> Iterator[tuple[str, int]]:
        """Yield scheme and seed of each run, seed by seed so that comparisons complete early."""
        for seed in self.config.seeds:
            for scheme in self.config.schemes:
                yield scheme, seed

    def identity(self, scheme: str, seed: int) -> dict[str, Any]:
        """Return the identifying fields of a row."""
        given, chosen = self.config.config(scheme, seed), SCHEMES[scheme]
        parts = {"weights": chosen.weights, "gradients": chosen.gradients}
        spec = {name: None if part is None else asdict(part) for name, part in parts.items()}
        # omit options that are None, because rows of earlier versions lack the one for activations
        training = {name: x for name, x in given.to_config().items() if x is not None}
        return row_identity(
            suite=SUITE, codec=scheme, version=__version__,
            spec={**spec, "training": training}, input=self.config.model,
            device=self.config.device, num_values=given.shape.num_parameters,
            group=f"seed {seed}, {self.source.name}, {self.config.ranks_in_words}",
        )  # fmt: skip

    def row(
        self, scheme: str, seed: int, progress: Callable[[int, int, str], None]
    ) -> TrainingRow | str:
        """Train once; return its row, or a sentence if the run diverged."""
        config, given = self.config, self.config.config(scheme, seed)
        found: Outcome = train_settings(
            {scheme: partial(GptRun, given, self.source, config.device)},
            ranks=config.processes,
            eval_every=max(1, given.steps // config.num_evals),
            eval_samples=config.eval_samples,
            progress=progress,
        )[scheme]
        curve = [(x["step"], x["loss"]) for x in found.lines if x["kind"] == "eval"]
        if not all(math.isfinite(loss) for _, loss in curve):
            return f"{scheme}, seed {seed}: the training diverged, and has no row"
        received = _received(found.lines)
        return TrainingRow(
            **self.identity(scheme, seed),
            original_nbytes=received[0],
            encoded_nbytes=received[1],
            worst_error=None,
            error_bound=None,
            encode_s=Percentiles(0.0, 0.0, 0.0),
            decode_s=Percentiles(0.0, 0.0, 0.0),
            quality=Quality(loss=Estimate(mean=curve[-1][1])),
            versions=machine.versions(),
            machine=machine.machine(torch.device(config.device)),
            training=TrainingFacts(
                data=self.source.name,
                seed=seed,
                steps=given.steps,
                batch=given.batch,
                num_ranks=config.num_ranks,
                ranks_per_node=given.ranks_per_node or config.num_ranks,
                curve=curve,
                step_s=median(x["step_s"] for x in found.lines if x["kind"] == "train"),
                num_jobs=config.jobs,
            ),
        )


def _received(lines: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return the bytes that the first rank would have received uncompressed, and those it did."""
    totals = [line[what] for line in lines for what in ("weights", "gradients") if what in line]
    levels = [level for total in totals for level in total["levels"].values()]
    original, encoded = (
        sum(level[name] for level in levels) for name in ("original_nbytes", "encoded_nbytes")
    )
    return original, encoded
