"""States of exchanges as flat mappings from names to tensors, as checkpoints take them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch

from tersor.errors import SpecError

State = dict[str, torch.Tensor]


class Stateful(Protocol):
    """Something that a training saves and goes on from."""

    def state_dict(self) -> State:
        """Return what a training needs to go on as if it had not stopped."""
        ...

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from a state."""
        ...


def joined(parts: Mapping[str, Stateful]) -> State:
    """Return the states of all parts, each under its name."""
    return {
        f"{name}.{key}": value
        for name, part in parts.items()
        for key, value in part.state_dict().items()
    }


def load_parts(parts: Mapping[str, Stateful], state: Mapping[str, torch.Tensor]) -> None:
    """Let every part go on from its own state.

    Raises:
        SpecError: the state is of other parts.
    """
    if {_owner(key, parts) for key in state} != set(parts):
        raise SpecError(
            "this state is of a model that was compressed in another way; load it into one that was "
            "compressed with the same arguments on as many ranks"
        )
    for name, part in parts.items():
        prefix = f"{name}."
        own = {key.removeprefix(prefix): x for key, x in state.items() if key.startswith(prefix)}
        part.load_state_dict(own)


def _owner(key: str, names: Iterable[str]) -> Any:
    return next((name for name in names if key.startswith(f"{name}.")), key)
