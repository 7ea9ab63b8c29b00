"""Training recipes for the models whose activations are compressed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tersor.errors import SpecError
from tersor.workloads.data.graph_opening import open_graph
from tersor.workloads.data.image_opening import open_images
from tersor.workloads.data.synthetic_images import SyntheticImages
from tersor.workloads.data.text_opening import open_text
from tersor.workloads.gcn import GcnConfig, GcnRun
from tersor.workloads.gpt import GptConfig, GptRun
from tersor.workloads.models.gpt import PRESETS as GPT_PRESETS
from tersor.workloads.models.gpt import GptShape
from tersor.workloads.training.config import TrainingConfig
from tersor.workloads.vision import PRESETS as VISION_PRESETS
from tersor.workloads.vision import VisionConfig, VisionRun

_VISION: Final = {"alexnet": "one-cycle", "resnet34": "cifar"}
"""The preset of each model; the one of the model's paper would take a day."""
_GPT_STEPS: Final = 800
_SMOKE: Final = {"steps": 2, "batch": 4}
_SMOKE_GPT: Final = GptShape(layers=1, width=32, heads=2, context=16, vocabulary=256)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A description of a training run, from which another process can build it.

    Attributes:
        model: name of the model.
        training: the config that all runs share.
        make_run: builds a run from a config, the data and a device, such as the run's class.
        source: the data.
    """

    model: str
    training: TrainingConfig
    make_run: Callable[..., Any]
    source: Any


def recipe_of(
    model: str, data: str, options: Mapping[str, Any], *, is_smoke: bool = False
) -> Recipe:
    """Return the training recipe of a model.

    Args:
        model: ``alexnet``, ``resnet34``, ``gcn``, or ``gpt-`` with the name of a preset.
        data: the data, as ``open_images``, ``open_graph`` or ``open_text`` takes it.
        options: fields of the training config that override the recipe; ``preset`` selects another
            preset.
        is_smoke: whether to train for only a few tiny steps.

    Raises:
        SpecError: there is no such model or data, or the options are invalid.
    """
    if "form" in options and model != "gcn":
        raise SpecError(f"only gcn has a form, not {model}")
    if "preset" in options and model not in _VISION:
        raise SpecError(f"only {' and '.join(_VISION)} have presets, not {model}")
    asked = {**options, **(_SMOKE if is_smoke else {})}
    kind, _, preset = model.partition("-")
    if kind == "gpt" and preset in GPT_PRESETS:
        return _gpt(model, preset, data, asked, is_smoke=is_smoke)
    if model in _VISION:
        return _vision(model, data, asked, is_smoke=is_smoke)
    if model == "gcn":
        return _gcn(data, asked)
    known = (*_VISION, "gcn", *(f"gpt-{name}" for name in GPT_PRESETS))
    raise SpecError(f"models are {', '.join(known)}, not {model!r}")


def _vision(model: str, data: str, options: dict[str, Any], *, is_smoke: bool) -> Recipe:
    source = SyntheticImages(num_train=16, num_test=16) if is_smoke else open_images(data)
    preset = options.pop("preset", _VISION[model])
    config = VisionConfig.of(model, preset, **options)
    if "steps" not in options:
        num_batches = len(source.labels("train")) // config.batch
        config = replace(config, steps=VISION_PRESETS[model][preset].epochs * num_batches)
    return Recipe(model=model, training=config, make_run=VisionRun, source=source)


def _gpt(model: str, preset: str, data: str, options: dict[str, Any], *, is_smoke: bool) -> Recipe:
    source = open_text(data)
    chosen = GPT_PRESETS[preset]
    known: dict[str, Any] = {
        "steps": _GPT_STEPS, "batch": chosen.batch, "learning_rate": chosen.learning_rate,
    }  # fmt: skip
    shape = replace(_SMOKE_GPT if is_smoke else chosen.shape, vocabulary=source.vocabulary)
    config = GptConfig(shape=shape, **{**known, **options})
    return Recipe(model=model, training=config, make_run=GptRun, source=source)


def _gcn(data: str, options: dict[str, Any]) -> Recipe:
    graph = open_graph(data)
    if "dtype" in options:
        raise SpecError("gcn computes in fp32; leave the dtype out")
    # every step uses all training nodes
    config = GcnConfig(**{**options, "batch": len(graph.train)})
    return Recipe(model="gcn", training=config, make_run=GcnRun, source=graph)
