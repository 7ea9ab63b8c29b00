"""The measured models, each with a batch of synthetic data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from tersor.bench.activations.case import Case
from tersor.errors import SpecError
from tersor.workloads.data.graph_opening import SYNTHETIC, open_graph
from tersor.workloads.data.images import ImageSource, training_batch
from tersor.workloads.data.synthetic_images import SyntheticImages
from tersor.workloads.data.synthetic_text import SyntheticText
from tersor.workloads.data.tokens import training_starts, windows
from tersor.workloads.gcn import GcnConfig, GcnRun
from tersor.workloads.models.alexnet import AlexNet
from tersor.workloads.models.gpt import PRESETS, Gpt, GptShape, set_weights
from tersor.workloads.models.resnet import ResNet, Stem

DTYPES: Final = ("fp32", "bf16")
_MEAN: Final = 0.45
"""Mean of the pixels on a scale from 0 to 1."""
_SMOKE_GPT: Final = GptShape(2, 64, 2, 32, 256)
_GPT_MODELS: Final = tuple(f"gpt-{preset}" for preset in ("2M", "10M", "30M", "125M", "350M"))
MODELS: Final = ("alexnet", "resnet34", "resnet34-224", *_GPT_MODELS, "gcn")
"""The available models; ``resnet34`` takes images of 32 pixels a side."""
DEFAULT_MODELS: Final[Mapping[str, tuple[str, ...]]] = {
    "cpu": ("alexnet", "resnet34", "gpt-2M", "gcn"),
    "cuda": ("alexnet", "resnet34", "resnet34-224", "gpt-10M", "gpt-125M", "gcn"),
    "smoke": ("gcn",),
}
"""The models that are measured by default."""
_BATCHES: Final[Mapping[str, Mapping[str, int]]] = {
    "cpu": {"alexnet": 128, "resnet34": 32, "resnet34-224": 4, "gpt-2M": 8, "gpt-10M": 4},
    "cuda": {
        "alexnet": 128, "resnet34": 128, "resnet34-224": 256, "gpt-2M": 32, "gpt-10M": 64,
        "gpt-30M": 64, "gpt-125M": 16, "gpt-350M": 8,
    },
}  # fmt: skip
"""Default samples per step; a graph is one batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CasePlan:
    """A description of a case, from which another process can build the same case.

    Attributes:
        model: a name from ``MODELS``.
        batch: samples per step; 0 for the default of model and device. A graph is always one batch.
        dtype: dtype that the model computes in.
        warm_steps: training steps before measuring, because gradients of initial weights are not
            representative.
        device: device of the model.
        seed: seed of weights and data.
        threads: CPU threads of torch; 0 for torch's default.
        is_smoke: whether a tiny model replaces the named one.
    """

    model: str
    batch: int = 0
    dtype: str = "fp32"
    warm_steps: int = 0
    device: str = "cpu"
    seed: int = 0
    threads: int = 0
    is_smoke: bool = False

    def __post_init__(self) -> None:
        """Reject an invalid plan, and resolve the batch."""
        if self.model not in MODELS:
            raise SpecError(f"models are {', '.join(MODELS)}, not {self.model!r}")
        if self.dtype not in DTYPES:
            raise SpecError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}")
        if min(self.batch, self.warm_steps, self.threads) < 0:
            raise SpecError("a batch, steps and threads cannot be below 0")
        usual = _BATCHES[torch.device(self.device).type].get(self.model, 1)
        batch = self.batch or (2 if self.is_smoke else usual)
        object.__setattr__(self, "batch", 1 if self.model == "gcn" else batch)

    @property
    def name(self) -> str:
        """The name of the model in rows."""
        return f"{self.model}-smoke" if self.is_smoke else self.model

    def make(self) -> Case:
        """Build the model, train it for ``warm_steps``, and return the case of the next batch."""
        if self.threads:
            torch.set_num_threads(self.threads)
        torch.manual_seed(self.seed)
        kind = "gpt" if self.model in _GPT_MODELS else self.model.partition("-")[0]
        made = _MAKERS[kind](self)
        _train(made, self.warm_steps)
        case = made.case(self.warm_steps)
        # allocate the gradients before anything is measured
        case.gradients(case.model)
        return case


@dataclass(frozen=True, slots=True)
class _Made:
    """A model, its optimizer, and a function that returns the case of each step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    case: Callable[[int], Case]


def _train(made: _Made, steps: int) -> None:
    for step in range(steps):
        case = made.case(step)
        made.optimizer.zero_grad(set_to_none=True)
        case.forward(made.model).backward()
        made.optimizer.step()


def _gpt(plan: CasePlan) -> _Made:
    shape = PRESETS[plan.model.removeprefix("gpt-")].shape
    source = SyntheticText(seed=plan.seed)
    shape = _SMOKE_GPT if plan.is_smoke else shape
    shape = replace(shape, vocabulary=max(shape.vocabulary, source.vocabulary))
    model = Gpt(shape, plan.device)
    set_weights(model, plan.seed)
    num_train = len(source.tokens("train"))

    def case(step: int) -> Case:
        first = step * plan.batch
        starts = training_starts(num_train, shape.context + 1, plan.seed, first, plan.batch)
        tokens = windows(source, "train", starts, shape.context + 1).to(plan.device)

        def loss(logits: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

        blocks, batch = list(model.blocks), (tokens[:, :-1],)
        return Case(plan.name, model, batch, batch, loss, blocks, plan.dtype, plan.seed)

    return _Made(model, torch.optim.AdamW(model.parameters(), lr=1e-3), case)


def _alexnet(plan: CasePlan) -> _Made:
    model = AlexNet(dropout=0.5).to(plan.device)
    blocks = [model.features, model.classifier]
    return _images(plan, model, blocks, 32)


def _resnet34(plan: CasePlan) -> _Made:
    side = 224 if plan.model.endswith("224") else 32
    stem: Stem = "imagenet" if side == 224 else "cifar"
    side = 32 if plan.is_smoke else side
    model = ResNet(stem=stem, blocks=(1, 1), width=8) if plan.is_smoke else ResNet(stem=stem)
    model.to(plan.device)
    return _images(plan, model, list(model.stages), side)


def _images(plan: CasePlan, model: nn.Module, blocks: Sequence[nn.Module], side: int) -> _Made:
    source: ImageSource = SyntheticImages(num_train=64 if plan.is_smoke else 4096, seed=plan.seed)
    num_images = len(source.labels("train"))

    def case(step: int) -> Case:
        size = num_images // plan.batch * plan.batch
        batch = training_batch(
            source, plan.seed, step * plan.batch, plan.batch, size, augment=False
        ).to(torch.device(plan.device))
        images = batch.images.float() / 255 - _MEAN
        if side != images.shape[-1]:
            images = functional.interpolate(images, (side, side), mode="bilinear")

        def loss(logits: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(logits, batch.labels)

        given = (images,)
        return Case(plan.name, model, given, given, loss, blocks, plan.dtype, plan.seed)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    return _Made(model, optimizer, case)


def _gcn(plan: CasePlan) -> _Made:
    graph = open_graph(SYNTHETIC, seed=plan.seed, num_nodes=500 if plan.is_smoke else None)
    config = GcnConfig(batch=len(graph.train), seed=plan.seed)
    run = GcnRun(config, graph, plan.device)
    batch = run.batch(0)
    given = (batch.features, *(hop.matrix for hop in batch.hops))

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(logits[batch.chosen], batch.labels)

    case = Case(
        plan.name, run.model, (batch.features, batch.hops), given, loss, list(run.model.neighbours),
        plan.dtype, plan.seed,
    )  # fmt: skip
    return _Made(run.model, run.optimizer, lambda _: case)


_MAKERS: Final[Mapping[str, Callable[[CasePlan], _Made]]] = {
    "gpt": _gpt, "alexnet": _alexnet, "resnet34": _resnet34, "gcn": _gcn,
}  # fmt: skip
