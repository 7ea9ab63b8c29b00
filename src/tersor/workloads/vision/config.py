"""Configuration of a training run on images, as stored in logs and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from tersor.errors import SpecError
from tersor.workloads.models.alexnet import SIDE
from tersor.workloads.models.resnet import STEMS, Stem
from tersor.workloads.training.activations import ActivationOptions
from tersor.workloads.training.config import TrainingConfig, decay_difference
from tersor.workloads.training.learning_rate import LearningRate

MODELS: Final = ("alexnet", "resnet34")
DTYPES: Final = ("fp32", "bf16")
SCHEDULES: Final = ("one-cycle", "constant")


@dataclass(frozen=True, slots=True)
class VisionPreset:
    """A training recipe.

    Attributes:
        batch: images per step.
        learning_rate: peak learning rate.
        schedule: of the learning rate.
        weight_decay: of all weights.
        augment: whether images are flipped and shifted.
        dropout: of AlexNet.
        stem: of ResNet34.
        side: height and width that images are scaled to, in pixels.
        epochs: that the recipe is designed for.
    """

    batch: int
    learning_rate: float
    schedule: Literal["one-cycle", "constant"] = "one-cycle"
    weight_decay: float = 5e-4
    augment: bool = True
    dropout: float = 0.0
    stem: Stem = "cifar"
    side: int = SIDE
    epochs: int = 12


PRESETS: Final[Mapping[str, Mapping[str, VisionPreset]]] = {
    "alexnet": {
        "one-cycle": VisionPreset(128, 0.04, dropout=0.5, epochs=40),
        "authors": VisionPreset(20, 0.01, "constant", 1e-4, augment=False, epochs=30),
    },
    "resnet34": {
        "cifar": VisionPreset(128, 0.1, epochs=12),
        "imagenet": VisionPreset(256, 0.1, weight_decay=1e-4, stem="imagenet", side=224, epochs=90),
    },
}
"""Presets by model; ``authors`` is that of the package behind the poster on activation compression."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig(TrainingConfig):
    """One training run.

    Attributes:
        model: a name of ``MODELS``.
        schedule: ``"constant"``, or ``"one-cycle"``: the learning rate grows for three tenths of the
            steps, then falls along a cosine to 0.
        weight_decay: of all weights.
        augment: whether half of the images are flipped, and all are shifted by up to 3 pixels.
        dropout: of AlexNet.
        stem: of ResNet34.
        side: height and width that images are scaled to, in pixels.
        dtype: compute dtype of the model; weights are always float32.
        decay_steps: step at which a cycle ends; 0 for the last step.
        activations: compression of tensors saved for backward; None to disable it.
    """

    model: Literal["alexnet", "resnet34"] = "alexnet"
    batch: int = PRESETS["alexnet"]["one-cycle"].batch
    learning_rate: float = PRESETS["alexnet"]["one-cycle"].learning_rate
    schedule: Literal["one-cycle", "constant"] = "one-cycle"
    weight_decay: float = 5e-4
    augment: bool = True
    dropout: float = 0.0
    stem: Stem = "cifar"
    side: int = SIDE
    dtype: Literal["fp32", "bf16"] = "fp32"
    decay_steps: int = 0
    activations: ActivationOptions | None = None

    @classmethod
    def of(cls, model: str, preset: str, **options: Any) -> VisionConfig:
        """Return a preset of a model, with some options overridden.

        Raises:
            SpecError: there is no such model or preset.

        Example:
            >>> VisionConfig.of("resnet34", "imagenet", batch=32).side
            224
        """
        if model not in PRESETS:
            raise SpecError(f"model must be one of {', '.join(MODELS)}, not {model!r}")
        if preset not in PRESETS[model]:
            raise SpecError(f"preset must be one of {', '.join(PRESETS[model])}, not {preset!r}")
        known: dict[str, Any] = {
            name: getattr(PRESETS[model][preset], name)
            for name in VisionPreset.__slots__
            if name != "epochs"
        }
        return cls(**{**known, "model": model, **options})

    def __post_init__(self) -> None:
        """Validate the fields."""
        # not super(): slots=True replaces the class, and super() still refers to the original one
        TrainingConfig.__post_init__(self)
        self.check_types(ActivationOptions | None, "ActivationOptions", ("activations",))
        self.check_types(int, "a whole number", ("side", "decay_steps"))
        self.check_types(int | float, "a number", ("weight_decay", "dropout"))
        chosen = {"model": MODELS, "schedule": SCHEDULES, "dtype": DTYPES, "stem": STEMS}
        for name, known in chosen.items():
            if getattr(self, name) not in known:
                raise SpecError(
                    f"{name} must be one of {', '.join(known)}, not {getattr(self, name)!r}"
                )
        if self.model == "alexnet" and self.side != SIDE:
            raise SpecError(f"AlexNet takes images of {SIDE} pixels a side, not {self.side}")
        if self.schedule == "constant" and self.decay_steps:
            raise SpecError("a constant learning rate has no decay_steps; leave them out")
        if self.side < 1 or self.decay_steps < 0 or not self.weight_decay >= 0:
            raise SpecError(
                "images need at least one pixel, and neither steps nor a weight decay are below 0"
            )

    def rate(self) -> LearningRate:
        """Return the schedule of the learning rate."""
        if self.schedule == "constant":
            return LearningRate(self.learning_rate)
        end = max(1, self.decay_steps or self.steps)
        return LearningRate(self.learning_rate, "cosine", warmup=3 * end // 10, end=end)

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form, with a default ``decay_steps`` resolved to the number of steps."""
        end = 0 if self.schedule == "constant" else self.decay_steps or self.steps
        return {**TrainingConfig.to_config(self), "decay_steps": end}

    def difference(self, saved: Mapping[str, Any]) -> str | None:
        """Describe how a saved run differs; if only in its learning-rate decay, how to keep that."""
        return decay_difference(self, saved)
