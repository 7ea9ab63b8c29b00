"""Entries that wait for the end of the pass, where it shows who else holds their memory: constants and integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from weakref import ReferenceType

import torch

from tersor.codecs import Codec
from tersor.sites.activations.entry import Entry, is_held_elsewhere, own_uses, storage_place


class UntilEnd(NamedTuple):
    """What becomes of an entry at the end of the pass if nobody else holds its memory.

    Attributes:
        entry: may be gone by then.
        codec: of values that no exact form makes small; None if they are to stay as they are.
        saved: the tensor, where its storage does not say who holds it, as that of a sparse one: while it
            is there, others do.
        stays: True if the entry stays as it is in any case: a sparse tensor, or one with gaps.
    """

    entry: ReferenceType[Entry]
    codec: Codec | None = None
    saved: ReferenceType[torch.Tensor] | None = None
    stays: bool = False


def decided(plans: Sequence[UntilEnd]) -> Iterator[tuple[UntilEnd, Entry, bool]]:
    """Yield plans whose entries are still there and unchanged, with these, and True if others hold the memory.

    Entries of one storage, as parts of one tensor, are no others of each other. All is decided before the first is yielded.
    """
    uses: Counter[int] = Counter()
    for plan in plans:
        entry = plan.entry()
        if entry is not None and plan.saved is None:
            values = entry.form.restored()
            uses[storage_place(values)] += own_uses(values)
    found = [_is_held_elsewhere(plan, uses) for plan in plans]
    for plan, is_held in zip(plans, found, strict=True):
        entry = plan.entry()
        if entry is not None and entry.is_unchanged:
            yield plan, entry, is_held


def _is_held_elsewhere(plan: UntilEnd, uses: Counter[int]) -> bool:
    if plan.saved is not None:
        return plan.saved() is not None
    entry = plan.entry()
    if entry is None:
        return False
    values = entry.form.restored()
    return is_held_elsewhere(values, uses[storage_place(values)])
