"""Configuration common to all trainings, as stored in logs and checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tersor.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """The options common to all trainings; each training derives its own configuration from it.

    Attributes:
        batch: samples of all ranks per step.
        steps: number of steps.
        learning_rate: peak learning rate.
        seed: of the weights, and of all random numbers in steps.
    """

    batch: int
    steps: int = 1000
    learning_rate: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        """Validate the fields."""
        self.check_types(int, "a whole number", ("batch", "steps", "seed"))
        self.check_types(int | float, "a number", ("learning_rate",))
        if self.batch < 1 or self.steps < 0:
            raise SpecError(
                f"steps={self.steps} with batch={self.batch} cannot be trained; give a batch of at least one sample, "
                "and no negative number of steps"
            )
        if not self.learning_rate > 0:
            raise SpecError(f"the learning rate must be above 0, not {self.learning_rate}")

    def check_types(self, kind: Any, words: str, names: Sequence[str]) -> None:
        """Raise ``SpecError`` for a field of the wrong type, before training starts.

        Args:
            kind: type that values must have; ``bool`` is never accepted.
            words: description of the type for the message.
            names: of the fields to check.
        """
        for name in names:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kind):
                raise SpecError(f"{name} must be {words}, not {value!r}")

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form; equal runs have equal forms."""
        return asdict(self, dict_factory=_without_unused_probes)

    def difference(self, saved: Mapping[str, Any]) -> str | None:
        """Describe how a saved run differs, and the remedy; None if it can continue with this config."""
        names = differing_options(self.to_config(), saved)
        if not names:
            return None
        return f"another {', '.join(names)}; give the same options, or another folder"


def _without_unused_probes(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return options without ``probe_every=0``, which checkpoints from before there were probes do not have."""
    return {name: value for name, value in pairs if (name, value) != ("probe_every", 0)}


def differing_options(config: Mapping[str, Any], saved: Mapping[str, Any]) -> list[str]:
    """Return the names of the options whose values differ in a saved run.

    ``steps`` is ignored, because a run may be extended.
    """
    ours = json.loads(json.dumps(config))
    return [name for name in ours if name != "steps" and ours[name] != saved.get(name)]


def decay_difference(config: TrainingConfig, saved: Mapping[str, Any]) -> str | None:
    """Describe how a saved run differs; if only in its learning-rate decay, how to keep that.

    For trainings whose learning rate is constant from ``decay_steps`` on, by default their last step.
    """
    found = TrainingConfig.difference(config, saved)
    if found is None or differing_options(config.to_config(), saved) != ["decay_steps"]:
        return found
    end = saved.get("decay_steps")
    return (
        f"another learning rate: it becomes final at step {end}, and by default that follows from "
        f"--steps; go on with --decay-steps {end}"
    )
