"""What a training run of DLRM is told, as it stands in logs and checkpoints."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from tersor.errors import SpecError
from tersor.sites.embeddings import AdaptiveBounds, ClassBounds, Decay
from tersor.workloads.models.dlrm import PRESETS, DlrmShape

OPTIMIZERS: Final = ("sgd", "adagrad")


@dataclass(frozen=True, slots=True)
class DlrmConfig:
    """One training run.

    Attributes:
        shape: of the model.
        batch: samples of all ranks per step.
        steps: how many of them.
        learning_rate: constant.
        optimizer: for tables and networks.
        seed: of the weights.
        codec: of looked-up rows: an id, ``"auto"``, or ``"raw"`` for no compression.
        backward: of gradients: an id, or ``"none"``.
        bounds: error bounds of looked-up rows.
        bandwidth_gbps: of the network, for ``"auto"``.
    """

    shape: DlrmShape = PRESETS["small"].shape
    batch: int = PRESETS["small"].batch
    steps: int = 1000
    learning_rate: float = 0.1
    optimizer: Literal["sgd", "adagrad"] = "sgd"
    seed: int = 0
    codec: str = "rows"
    backward: str = "half"
    bounds: AdaptiveBounds = field(default_factory=AdaptiveBounds)
    bandwidth_gbps: float = 1.25

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        self._check_types()
        if self.batch < 1 or self.steps < 0:
            raise SpecError(f"{self.steps} steps of {self.batch} samples cannot be trained")
        if self.optimizer not in OPTIMIZERS:
            raise SpecError(f"optimizer must be one of {', '.join(OPTIMIZERS)}")
        if not self.learning_rate > 0:
            raise SpecError(f"the learning rate must be above 0, not {self.learning_rate}")

    def _check_types(self) -> None:
        """Refuse a value of another type here, and not in the midst of a training."""
        kinds: tuple[tuple[Any, str, tuple[str, ...]], ...] = (
            (int, "a whole number", ("batch", "steps", "seed")),
            (int | float, "a number", ("learning_rate", "bandwidth_gbps")),
            (str, "the id of a codec", ("codec", "backward")),
            (DlrmShape, "a DlrmShape", ("shape",)),
            (AdaptiveBounds, "AdaptiveBounds", ("bounds",)),
        )
        for kind, words, names in kinds:
            for name in names:
                value = getattr(self, name)
                if isinstance(value, bool) or not isinstance(value, kind):
                    raise SpecError(f"{name} must be {words}, not {value!r}")

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form; equal runs have equal forms."""
        values = asdict(self)
        values["bounds"]["tight"] = sorted(self.bounds.tight)
        values["bounds"]["loose"] = sorted(self.bounds.loose)
        # as it was before tables could have bounds of their own
        if not self.bounds.tables:
            del values["bounds"]["tables"]
        return values


def uncompressed(config: DlrmConfig) -> DlrmConfig:
    """Return the same run with rows and gradients as they are."""
    return DlrmConfig(
        shape=config.shape, batch=config.batch, steps=config.steps,
        learning_rate=config.learning_rate, optimizer=config.optimizer, seed=config.seed,
        codec="raw", backward="none",
        bounds=AdaptiveBounds(bounds=ClassBounds(), decay=Decay.off()),
        bandwidth_gbps=config.bandwidth_gbps,
    )  # fmt: skip
