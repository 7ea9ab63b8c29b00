"""Entries that wait for the end of the pass, where it shows who else holds their memory: constants and integers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from weakref import ReferenceType, ref

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tersor.codecs import Codec
from tersor.sites.activations.entry import Entry, is_held_elsewhere, own_uses, storage_place


class UntilEnd(NamedTuple):
    """What becomes of an entry at the end of the pass if nobody else holds its memory.

    Attributes:
        entry: may be gone by then, where backward ran inside the context.
        codec: of values that no exact form makes small; None if they are to stay as they are.
        stays: True if the entry stays as it is in any case: a sparse tensor, or one with gaps.
        storage: of the tensor; None where it does not say who holds it, as that of a sparse one.
        saved: the tensor itself then: while it is there, others hold it.
        reason: of the entry.
        nbytes: of the tensor.
    """

    entry: ReferenceType[Entry]
    codec: Codec | None
    stays: bool
    storage: StorageWeakRef | None
    saved: ReferenceType[torch.Tensor] | None
    reason: str
    nbytes: int

    @classmethod
    def of(
        cls, entry: Entry, t: torch.Tensor, codec: Codec | None = None, *, stays: bool = False
    ) -> UntilEnd:
        """Return what waits for an entry of ``t``."""
        is_dense = t.layout is torch.strided
        storage = StorageWeakRef(t.untyped_storage()) if is_dense else None
        saved = None if is_dense else ref(t)
        return cls(ref(entry), codec, stays, storage, saved, entry.reason, entry.original_nbytes)

    @property
    def outlived_its_entry(self) -> bool:
        """True if the entry is gone and the memory is not, so that others held it all the time."""
        if self.entry() is not None:
            return False
        if self.storage is not None:
            return not self.storage.expired()
        return self.saved is not None and self.saved() is not None


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
