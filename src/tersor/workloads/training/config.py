"""What every training is told, as it stands in logs and checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tersor.errors import SpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """The options that every training has; a training derives from it and adds its own.

    Attributes:
        batch: samples of all ranks per step.
        steps: how many of them.
        learning_rate: the largest.
        seed: of the weights, and of every random number of a step.
    """

    batch: int
    steps: int = 1000
    learning_rate: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
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
        """Refuse a value of another type here, and not in the midst of a training."""
        for name in names:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kind):
                raise SpecError(f"{name} must be {words}, not {value!r}")

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form; equal runs have equal forms."""
        return asdict(self)

    def difference(self, saved: Mapping[str, Any]) -> str | None:
        """Say how a saved run differs from this one, with the way out; None if it can go on here."""
        names = differing_options(self.to_config(), saved)
        if not names:
            return None
        return f"another {', '.join(names)}; give the same options, or another folder"


def differing_options(config: Mapping[str, Any], saved: Mapping[str, Any]) -> list[str]:
    """Return the names of the options that a saved run had another value of.

    Not ``steps``: a run may go on for longer than it was first told.
    """
    ours = json.loads(json.dumps(config))
    return [name for name in ours if name != "steps" and ours[name] != saved.get(name)]


def decay_difference(config: TrainingConfig, saved: Mapping[str, Any]) -> str | None:
    """Say how a saved run differs, and how to keep its learning rate where nothing else does.

    For trainings whose learning rate is final from ``decay_steps`` on, by default their last step.
    """
    found = TrainingConfig.difference(config, saved)
    if found is None or differing_options(config.to_config(), saved) != ["decay_steps"]:
        return found
    end = saved.get("decay_steps")
    return (
        f"another learning rate: it becomes final at step {end}, and by default that follows from "
        f"--steps; go on with --decay-steps {end}"
    )
