"""Configuration of a training run of DLRM, as stored in logs and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

from tersor.errors import SpecError
from tersor.sites.embeddings import AdaptiveBounds, ClassBounds, Decay
from tersor.workloads.models.dlrm import PRESETS, DlrmShape
from tersor.workloads.training.config import TrainingConfig, differing_options

OPTIMIZERS: Final = ("sgd", "adagrad")


@dataclass(frozen=True, slots=True, kw_only=True)
class DlrmConfig(TrainingConfig):
    """One training run.

    Attributes:
        shape: of the model.
        optimizer: for tables and networks.
        codec: of looked-up rows: an id, ``"auto"``, or ``"raw"`` for no compression.
        backward: of gradients: an id, or ``"none"``.
        bounds: error bounds of looked-up rows.
        bandwidth_gbit_s: of the network, for ``"auto"``.
    """

    shape: DlrmShape = PRESETS["small"].shape
    batch: int = PRESETS["small"].batch
    optimizer: Literal["sgd", "adagrad"] = "sgd"
    codec: str = "rows"
    backward: str = "half"
    bounds: AdaptiveBounds = field(default_factory=AdaptiveBounds)
    bandwidth_gbit_s: float = 10.0

    def __post_init__(self) -> None:
        """Validate the fields."""
        # not super(): slots=True replaces the class, and super() still refers to the original one
        TrainingConfig.__post_init__(self)
        self.check_types(int | float, "a number", ("bandwidth_gbit_s",))
        self.check_types(str, "the id of a codec", ("codec", "backward"))
        self.check_types(DlrmShape, "a DlrmShape", ("shape",))
        self.check_types(AdaptiveBounds, "AdaptiveBounds", ("bounds",))
        if self.optimizer not in OPTIMIZERS:
            raise SpecError(f"optimizer must be one of {', '.join(OPTIMIZERS)}")

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form; equal runs have equal forms."""
        values = asdict(self)
        values["bounds"]["tight"] = sorted(self.bounds.tight)
        values["bounds"]["loose"] = sorted(self.bounds.loose)
        # logs and checkpoints have always held gigabytes per second
        values["bandwidth_gbps"] = values.pop("bandwidth_gbit_s") / 8
        # for equality with configs saved before tables could have their own bounds
        if not self.bounds.tables:
            del values["bounds"]["tables"]
        return values

    def difference(self, saved: Mapping[str, Any]) -> str | None:
        """Describe how a saved run differs; if only in the decay of its bounds, how to keep that."""
        found = TrainingConfig.difference(self, saved)
        if found is None:
            return None
        ours = self.to_config()
        end = ours["bounds"]["decay"]["end"] = _decay_end(saved.get("bounds"))
        if differing_options(ours, saved):
            return found
        return (
            f"another decay: its bounds become final at iteration {end}, and by default that follows "
            f"from --steps; go on with --decay-end {end}"
        )


def _decay_end(bounds: Any) -> Any:
    try:
        return bounds["decay"]["end"]
    except (LookupError, TypeError):
        return None


def uncompressed(config: DlrmConfig) -> DlrmConfig:
    """Return the same run with rows and gradients uncompressed."""
    bounds = AdaptiveBounds(bounds=ClassBounds(), decay=Decay.off())
    return replace(config, codec="raw", backward="none", bounds=bounds)
