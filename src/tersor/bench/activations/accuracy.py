"""The ``accuracy-activations`` suite: train with and without compression, seed by seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch

from tersor.bench.activations.contenders import make_contender
from tersor.bench.activations.recipes import Recipe
from tersor.bench.activations.training import MakeRun, Trained, trained
from tersor.bench.core import machine
from tersor.bench.core.blocks import Estimate, Quality
from tersor.bench.core.outcome import SuiteOutcome, ignore
from tersor.bench.core.rows import ResultRow, TrainingRow, row_identity
from tersor.bench.core.timing import Percentiles
from tersor.bench.core.training_facts import TrainingFacts
from tersor.bench.core.training_jobs import train_all
from tersor.bench.core.training_place import EXACT
from tersor.errors import SpecError
from tersor.workloads.training.config import TrainingConfig

SUITE: Final = "accuracy-activations"
DEFAULT_SETTINGS: Final = (
    EXACT, "rms-1", "rms-0.5", "score-0.95", "score-0.7", "ans-0.01", "ans-0.03", "group4", "group2",
)  # fmt: skip
_NO_TIME: Final = Percentiles(0.0, 0.0, 0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class AccuracyConfig:
    """What to train.

    Attributes:
        recipe: the training recipe; its seed is replaced.
        settings: names of our contenders for ``make_contender``; ``exact`` is always trained.
        seeds: every setting is trained with each of them.
        device: device to train on.
        jobs: training runs at the same time.
        num_evals: points of each curve, and probes of the gradient.
        eval_samples: test samples of each evaluation; all if None.
    """

    recipe: Recipe
    settings: tuple[str, ...] = DEFAULT_SETTINGS
    seeds: tuple[int, ...] = (0, 1, 2)
    device: str = "cpu"
    jobs: int = 1
    num_evals: int = 10
    eval_samples: int | None = None

    def __post_init__(self) -> None:
        """Reject settings that cannot be trained, and put ``exact`` first."""
        for name in self.settings:
            if name != EXACT and make_contender(name).compression is None:
                raise SpecError(
                    f"{name} is no setting to train with; take one of ours that is not compiled, such as rms-1"
                )
        if not self.seeds or min(self.jobs, self.num_evals) < 1 or self.recipe.training.steps < 1:
            raise SpecError("name at least one seed, job, evaluation and step")
        object.__setattr__(self, "settings", tuple(dict.fromkeys((EXACT, *self.settings))))

    def run_maker(self, setting: str, seed: int) -> MakeRun:
        """Return a picklable factory of the training run of a setting and a seed."""
        config, recipe = self.config(setting, seed), self.recipe
        return partial(recipe.make_run, config, recipe.source, self.device)

    def config(self, setting: str, seed: int) -> TrainingConfig:
        """Return the config of one training run."""
        changes: dict[str, Any] = {"activations": make_contender(setting).compression, "seed": seed}
        return replace(self.recipe.training, **changes)


def run_accuracy(
    config: AccuracyConfig,
    *,
    done: frozenset[str] = frozenset(),
    on_row: Callable[[ResultRow], None] = ignore,
    on_note: Callable[[str], None] = ignore,
    progress: Callable[[int, int, str], None] = ignore,
) -> SuiteOutcome:
    """Train every setting with every seed.

    Args:
        config: the plan.
        done: keys of rows that exist already, which are not trained again.
        on_row: called with the row of each training run as soon as it is done; write it to disk here.
        on_note: called with one sentence for each fact a reader must know.
        progress: called with (steps done, total steps, a word).

    Raises:
        ExchangeError: a training run failed, and the runs in progress have ended.
    """
    outcome = SuiteOutcome(done, on_row, on_note)
    wanted = [one for one in _trainings(config) if not outcome.is_done(_identity(config, *one))]

    def train(setting: str, seed: int, show: Callable[[int, int, str], None]) -> Trained:
        return trained(
            config.run_maker(setting, seed), num_evals=config.num_evals, eval_samples=config.eval_samples, progress=show,
        )  # fmt: skip

    def keep(training: tuple[str, int], found: Trained) -> None:
        if all(math.isfinite(loss) for _, loss in found.curve):
            outcome.add(_row(config, *training, found))
            return
        sentence = "{}, seed {}: the training diverged, and has no row".format(*training)
        outcome.note(sentence)
        if training[0] != EXACT:
            outcome.refusals.append(sentence)

    train_all(
        wanted, train, jobs=config.jobs, steps=config.recipe.training.steps, progress=progress,
        on_result=keep,
    )  # fmt: skip
    return outcome


def _trainings(config: AccuracyConfig) -> Iterator[tuple[str, int]]:
    """Yield setting and seed of each run, seed by seed so that comparisons complete early."""
    for seed in config.seeds:
        for setting in config.settings:
            yield setting, seed


def _identity(config: AccuracyConfig, setting: str, seed: int) -> dict[str, Any]:
    contender, recipe = make_contender(setting), config.recipe
    spec = {"training": config.config(setting, seed).to_config()}
    return row_identity(
        suite=SUITE, codec=setting, version=contender.version, spec=spec, input=recipe.model,
        device=torch.device(config.device).type, num_values=recipe.training.batch,
        group=f"seed {seed}, {recipe.source.name}",
    )  # fmt: skip


def _row(config: AccuracyConfig, setting: str, seed: int, found: Trained) -> TrainingRow:
    accuracy = found.metrics.get("accuracy")
    quality = Quality(
        loss=Estimate(mean=found.curve[-1][1]),
        accuracy=None if accuracy is None else Estimate(mean=accuracy),
        score=None if found.score is None else Estimate(mean=found.score),
    )
    return TrainingRow(
        **_identity(config, setting, seed),
        original_nbytes=0 if found.saved is None else found.saved.nbytes,
        encoded_nbytes=0 if found.saved is None else found.saved.held_nbytes,
        worst_error=None,
        error_bound=None,
        encode_s=_NO_TIME,
        decode_s=_NO_TIME,
        quality=quality,
        versions=machine.versions(),
        machine=machine.machine(torch.device(config.device)),
        training=TrainingFacts(
            data=config.recipe.source.name,
            seed=seed,
            steps=config.recipe.training.steps,
            batch=config.recipe.training.batch,
            num_ranks=1,
            ranks_per_node=1,
            curve=found.curve,
            step_s=found.step_s,
            num_jobs=config.jobs,
            saved=found.saved,
        ),
    )
