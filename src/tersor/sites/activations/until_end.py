"""Entries that wait for the end of the pass, where it shows who else holds their memory: constants and integers."""

from __future__ import annotations

from typing import NamedTuple
from weakref import ReferenceType

import torch

from tersor.codecs import Codec
from tersor.sites.activations.entry import Entry, is_held_elsewhere


class UntilEnd(NamedTuple):
    """What becomes of an entry at the end of the pass if nobody else holds its memory.

    Attributes:
        entry: may be gone by then.
        codec: of values that no exact form makes small; None if they are to stay as they are.
        saved: the tensor, where its storage does not say who holds it, as that of a sparse one: while it
            is there, others do, and it stays as it is in any case.
    """

    entry: ReferenceType[Entry]
    codec: Codec | None = None
    saved: ReferenceType[torch.Tensor] | None = None

    def is_held_elsewhere(self, values: torch.Tensor) -> bool:
        """True if others than the entry hold the memory of its values."""
        return is_held_elsewhere(values) if self.saved is None else self.saved() is not None
