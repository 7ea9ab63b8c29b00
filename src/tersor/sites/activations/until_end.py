"""Entries whose form is chosen at the end of the forward pass: constants and integers.

If the caller still holds the memory of such a tensor by then, encoding it would save nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from weakref import ReferenceType, ref

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tersor.codecs import Codec
from tersor.sites.activations.entry import Entry, is_held_elsewhere, num_own_references, storage_id


class PendingEntry(NamedTuple):
    """A postponed decision: what to do with an entry if nobody else holds its memory at the end of the pass.

    Attributes:
        entry: the entry; it may be freed before, if backward runs inside the context.
        codec: codec for values that no exact form makes small; None if they must stay exact.
        stays: True if the entry is never encoded: a sparse tensor, or one with gaps.
        storage: storage of a strided tensor; None for other layouts, whose storages do not tell who holds them.
        saved: the tensor itself in that case: while it is alive, others hold it.
        reason: reason of the entry.
        nbytes: size of the tensor.
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
    ) -> PendingEntry:
        """Postpone the decision on an entry of ``t``."""
        is_dense = t.layout is torch.strided
        storage = StorageWeakRef(t.untyped_storage()) if is_dense else None
        saved = None if is_dense else ref(t)
        return cls(ref(entry), codec, stays, storage, saved, entry.reason, entry.original_nbytes)

    @property
    def outlived_its_entry(self) -> bool:
        """True if the entry is freed but its memory is not: others held it all along."""
        if self.entry() is not None:
            return False
        if self.storage is not None:
            return not self.storage.expired()
        return self.saved is not None and self.saved() is not None


def decided(plans: Sequence[PendingEntry]) -> Iterator[tuple[PendingEntry, Entry, bool]]:
    """Yield each plan whose entry is alive and unchanged, that entry, and True if others hold its memory.

    Entries that share a storage, such as slices of one tensor, do not count as others. All decisions are made before
    the first result is yielded, because encoding changes the reference counts.
    """
    uses: Counter[int] = Counter()
    for plan in plans:
        entry = plan.entry()
        if entry is not None and plan.saved is None:
            values = entry.form.restored()
            uses[storage_id(values)] += num_own_references(values)
    found = [_is_held_elsewhere(plan, uses) for plan in plans]
    for plan, is_held in zip(plans, found, strict=True):
        entry = plan.entry()
        if entry is not None and entry.is_unchanged:
            yield plan, entry, is_held


def _is_held_elsewhere(plan: PendingEntry, uses: Counter[int]) -> bool:
    if plan.saved is not None:
        return plan.saved() is not None
    entry = plan.entry()
    if entry is None:
        return False
    values = entry.form.restored()
    return is_held_elsewhere(values, uses[storage_id(values)])
