"""Runs of every model that compresses what it saves, small enough for a test."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tersor.workloads.data.synthetic_graph import SyntheticGraph
from tersor.workloads.data.synthetic_images import SyntheticImages
from tersor.workloads.data.synthetic_text import SyntheticText
from tersor.workloads.gcn import GcnConfig, GcnRun
from tersor.workloads.gpt import GptConfig, GptRun
from tersor.workloads.models.alexnet import AlexNet
from tersor.workloads.models.gpt import GptShape
from tersor.workloads.models.resnet import ResNet
from tersor.workloads.training.activations import ActivationOptions
from tersor.workloads.training.run import TrainingRun
from tersor.workloads.vision import VisionConfig, VisionRun
from tersor.workloads.vision import run as vision_run

Run = TrainingRun[Any, Any]
IMAGES = SyntheticImages(num_train=64, num_test=20)
GRAPH = SyntheticGraph(num_nodes=400, num_features=64, num_classes=4).graph()
TEXT = SyntheticText(num_train=200, num_validation=20)
SHAPE = GptShape(layers=1, width=64, heads=2, context=32, vocabulary=256)


def image_run(model: str, preset: str, activations: ActivationOptions | None) -> Run:
    options = {"batch": 8, "steps": 6, "activations": activations}
    return VisionRun(VisionConfig.of(model, preset, **options), IMAGES)


def graph_run(form: str, activations: ActivationOptions | None) -> Run:
    options: dict[str, Any] = {"form": form, "steps": 6, "activations": activations}
    return GcnRun(GcnConfig(batch=len(GRAPH.train), **options), GRAPH)


def text_run(activations: ActivationOptions | None, **more: Any) -> Run:
    options: dict[str, Any] = {"batch": 4, "steps": 6, "activations": activations, **more}
    return GptRun(GptConfig(shape=SHAPE, accumulation=2, **options), TEXT)


RUNS: dict[str, Callable[[ActivationOptions | None], Run]] = {
    "alexnet": partial(image_run, "alexnet", "one-cycle"),
    "resnet34": partial(image_run, "resnet34", "cifar"),
    "gpt": text_run,
    "csr": partial(graph_run, "csr"),
    "matmul": partial(graph_run, "matmul"),
    "linear": partial(graph_run, "linear"),
}


def make_small(patch: pytest.MonkeyPatch) -> None:
    """Let the models of images have a small part of their weights."""
    small = partial(AlexNet, widths=(16, 16, 16, 16, 16), hidden=64)
    patch.setattr(vision_run, "AlexNet", small)
    patch.setattr(vision_run, "ResNet", partial(ResNet, blocks=(1, 1), width=8))
