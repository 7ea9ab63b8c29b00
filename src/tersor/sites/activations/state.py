"""The learned state of a compression, for checkpoints."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from tersor.errors import SpecError
from tersor.policy import Similarity
from tersor.sites.activations.balance import LevelFactors


class State(NamedTuple):
    """What a resumed training needs to continue as if it had not stopped.

    Attributes:
        num_steps: number of steps so far.
        level: step or bound; None if there is no level (``Quality.level``).
        calibration: factor on predicted losses ``1 - score``, from the last probe.
        similarity: last measured or predicted similarity of gradients; None before the first.
        similarity_level: the level that ``similarity`` was found at.
        is_predicted: True if ``similarity`` is predicted, False if it comes from a probe.
        balance: factors on the level; None if they were never measured.
    """

    num_steps: int
    level: float | None
    calibration: float
    similarity: Similarity | None
    similarity_level: float | None
    is_predicted: bool
    balance: LevelFactors | None

    def to_dict(self, origin: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON form, together with ``origin``, the options that the state belongs to."""
        similarity = None if self.similarity is None else list(self.similarity)
        balance = None if self.balance is None else self.balance.to_config()
        plain = {"similarity": similarity, "balance": balance}
        return {"origin": dict(origin), **self._asdict(), **plain}

    @classmethod
    def of(cls, state: object, origin: Mapping[str, Any]) -> State:
        """Make a state from the result of ``to_dict``.

        Raises:
            SpecError: it is not such a result, or its options differ from ``origin``.
        """
        if not isinstance(state, Mapping) or "origin" not in state:
            raise SpecError("this is no state of a compression; state_dict() makes one")
        if state["origin"] != origin:
            raise SpecError(
                f"this state is of a compression with other options, {state.get('origin')}; make one with the "
                "same to load it"
            )
        try:
            # states of earlier versions have neither balance nor similarity_level
            similarity, balance = state["similarity"], state.get("balance")
            return cls(
                num_steps=int(state["num_steps"]),
                level=_level(state["level"]),
                calibration=float(state["calibration"]),
                similarity=None if similarity is None else Similarity(*map(float, similarity)),
                similarity_level=_level(state.get("similarity_level")),
                is_predicted=bool(state["is_predicted"]),
                balance=None if balance is None else LevelFactors.from_config(balance),
            )
        except (AttributeError, KeyError, SpecError, TypeError, ValueError) as error:
            raise SpecError("this is no state of a compression; state_dict() makes one") from error


def _level(given: Any) -> float | None:
    if given is None:
        return None
    level = float(given)
    if not 0 < level < math.inf:
        raise ValueError(level)
    return level
