"""States of exchanges as flat mappings from names to tensors, the form that checkpoints store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import torch

from tersor.errors import SpecError

State = dict[str, torch.Tensor]
_OTHER_STATE: Final = (
    "this state is of a model that was compressed in another way; load it into one that was compressed "
    "with the same arguments on as many ranks"
)
_ORIGIN: Final = "origin"


def with_origin(origin: str, state: State) -> State:
    """Return a state that also records its origin: the rank and the options it belongs to."""
    return {_ORIGIN: torch.tensor(list(origin.encode()), dtype=torch.uint8), **state}


def without_origin(origin: str, state: Mapping[str, torch.Tensor]) -> State:
    """Check the origin that ``with_origin`` recorded, and return the state without it.

    Raises:
        SpecError: the state belongs to another rank or to other options.
    """
    rest = dict(state)
    found = bytes(rest.pop(_ORIGIN, torch.empty(0, dtype=torch.uint8)).tolist()).decode()
    check_origin(found, origin)
    return rest


def check_origin(found: str, own: str) -> None:
    """Raise ``SpecError`` unless the origin of a state is this rank's own."""
    if found != own:
        raise SpecError(f"{_OTHER_STATE}; its origin is {found or 'unknown'}, this is {own}")


class Stateful(Protocol):
    """An object whose state belongs in a checkpoint."""

    def state_dict(self) -> State:
        """Return the state needed to resume training exactly."""
        ...

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Resume from a state."""
        ...


def joined(parts: Mapping[str, Stateful]) -> State:
    """Return the merged states of all parts, with keys prefixed by the part's name."""
    return {
        f"{name}.{key}": value
        for name, part in parts.items()
        for key, value in part.state_dict().items()
    }


def load_parts(parts: Mapping[str, Stateful], state: Mapping[str, torch.Tensor]) -> None:
    """Load into each part its own entries of a joined state.

    Raises:
        SpecError: the state does not have exactly these parts.
    """
    if {_owner(key, parts) for key in state} != set(parts):
        raise SpecError(_OTHER_STATE)
    for name, part in parts.items():
        prefix = f"{name}."
        own = {key.removeprefix(prefix): x for key, x in state.items() if key.startswith(prefix)}
        part.load_state_dict(own)


def _owner(key: str, names: Iterable[str]) -> Any:
    return next((name for name in names if key.startswith(f"{name}.")), key)
