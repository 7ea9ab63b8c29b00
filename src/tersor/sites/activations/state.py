"""What a compression has learned, as checkpoints hold it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from tersor.errors import SpecError
from tersor.policy import Similarity
from tersor.sites.activations.balance import Balance


class State(NamedTuple):
    """What a training needs to go on as if it had not stopped.

    Attributes:
        num_steps: so far.
        level: step or bound; None if the codec has neither.
        calibration: by which predicted losses of the score are multiplied, from the last probe.
        similarity: of gradients, last measured or predicted; None before.
        similarity_level: the level that it is of.
        is_predicted: True if it does not come from a probe.
        balance: factors of the level; None if it was never balanced.
    """

    num_steps: int
    level: float | None
    calibration: float
    similarity: Similarity | None
    similarity_level: float | None
    is_predicted: bool
    balance: Balance | None

    def to_dict(self, origin: Mapping[str, Any]) -> dict[str, Any]:
        """Return values that JSON can hold, and the options that they belong to."""
        similarity = None if self.similarity is None else list(self.similarity)
        balance = None if self.balance is None else self.balance.to_config()
        plain = {"similarity": similarity, "balance": balance}
        return {"origin": dict(origin), **self._asdict(), **plain}

    @classmethod
    def of(cls, state: object, origin: Mapping[str, Any]) -> State:
        """Return what ``to_dict`` made a state of.

        Raises:
            SpecError: it is no state, or that of other options.
        """
        if not isinstance(state, Mapping) or "origin" not in state:
            raise SpecError("this is no state of a compression; state_dict() makes one")
        if state["origin"] != origin:
            raise SpecError(
                f"this state is of a compression with other options, {state.get('origin')}; make one with the "
                "same to load it"
            )
        try:
            # earlier versions noted neither balance nor similarity_level
            similarity, balance = state["similarity"], state.get("balance")
            return cls(
                num_steps=int(state["num_steps"]),
                level=_level(state["level"]),
                calibration=float(state["calibration"]),
                similarity=None if similarity is None else Similarity(*map(float, similarity)),
                similarity_level=_level(state.get("similarity_level")),
                is_predicted=bool(state["is_predicted"]),
                balance=None if balance is None else Balance.from_config(balance),
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
