"""Saved tensors between forward and backward: one entry per piece of memory, however often it is saved."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tersor.sites.activations.forms import Form, nbytes_of
from tersor.sites.activations.report import Ledger


class Entry:
    """The values of a saved tensor, flat in memory order, and the version of the tensor when it was saved.

    Attributes:
        form: how the values are stored; replaced when a window is encoded.
        reason: the row of the report that counts the entry.
        is_shared: True if backward needs the values more than once.
        original_nbytes: size of the tensor as autograd would have held it.
        mse: mean square error of the decoded values, one float on the device; None if it is not measured.
    """

    __slots__ = (
        "__weakref__",
        "_counter",
        "_form",
        "_held_nbytes",
        "_ledger",
        "_restore",
        "_version",
        "is_shared",
        "mse",
        "original_nbytes",
        "reason",
    )

    def __init__(
        self,
        saved: torch.Tensor,
        form: Form,
        reason: str,
        ledger: Ledger,
        restore: Callable[[Entry], torch.Tensor] | None = None,
    ) -> None:
        """Count the memory of ``form`` in ``ledger`` for as long as the entry lives.

        Args:
            saved: the tensor as autograd saves it.
            form: the form of its values.
            reason: see ``Entry``.
            ledger: the ledger of the step.
            restore: decodes this entry, possibly together with others; by default the form is decoded alone.
        """
        self._version = saved._version  # noqa: SLF001 - what autograd itself compares
        # Shares the version counter of ``saved``, but no memory: in-place changes are still detected after
        # the memory is freed.
        self._counter = saved.detach()
        if saved.layout is torch.strided:
            self._counter.data = _no_values(saved.dtype, saved.device)
        self._form, self._ledger, self._restore = form, ledger, restore
        self.is_shared = False
        self.reason, self.original_nbytes = reason, nbytes_of(saved)
        self.mse: torch.Tensor | None = None
        self._held_nbytes = form.nbytes
        ledger.hold(self, self._held_nbytes)

    @property
    def form(self) -> Form:
        """The form of the values."""
        return self._form

    def replace(self, form: Form, reason: str | None = None) -> None:
        """Replace the form by another one of the same values, and its reason if one is given."""
        reason, nbytes = reason or self.reason, form.nbytes
        self._ledger.exchange(self, self._held_nbytes, reason, nbytes)
        self._form, self.reason, self._held_nbytes = form, reason, nbytes

    def __del__(self) -> None:
        """Subtract the memory from the live bytes."""
        # the constructor may have raised before it set this
        nbytes = getattr(self, "_held_nbytes", None)
        if nbytes is not None:
            self._ledger.subtract_live(self.reason, nbytes)

    @property
    def is_unchanged(self) -> bool:
        """True if the tensor has not been modified in place since it was saved."""
        return self._counter._version == self._version  # noqa: SLF001 - as above

    def restored(self) -> torch.Tensor:
        """Return the values, flat.

        Raises:
            RuntimeError: the tensor has been modified in place since it was saved; autograd raises the same
                error without hooks.
        """
        _check_unchanged(self._counter, self._version)
        return self._form.restored() if self._restore is None else self._restore(self)


@cache
def _no_values(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device=device)


def _check_unchanged(t: torch.Tensor, version: int) -> None:
    found = t._version  # noqa: SLF001 - what autograd itself compares
    if found != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: [{t.type()}] is at version {found}; expected version {version} instead; compute on a "
            "copy, or out of place"
        )


class SavedUnchanged(NamedTuple):
    """A tensor saved unchanged, whose lifetime is not counted: a parameter, a cast of one, or a small tensor.

    Attributes:
        values: the tensor, detached from its graph.
        version: its version when it was saved.
    """

    values: torch.Tensor
    version: int

    @classmethod
    def of(cls, t: torch.Tensor) -> SavedUnchanged:
        """Save a tensor."""
        return cls(t.detach(), t._version)  # noqa: SLF001 - as above

    def unpack(self) -> torch.Tensor:
        """Return the tensor; see ``Entry.restored``."""
        _check_unchanged(self.values, self.version)
        return self.values


class SavedView(NamedTuple):
    """What autograd holds in place of a tensor: an entry, and the tensor's shape and stride over its values.

    Without shape and stride, the form of the entry is the tensor itself, not flat values.
    """

    entry: Entry
    shape: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None

    def unpack(self) -> torch.Tensor:
        """Return the values in the tensor's own memory layout, detached: the saved tensor would hold its graph."""
        values = self.entry.restored().detach()
        if self.shape is None or self.stride is None:
            return values
        return values.as_strided(self.shape, self.stride)


class MemoryLayout(NamedTuple):
    """The memory layout of a tensor: its distinct values in memory order, and its stride over them.

    Attributes:
        values: flat; a view if the tensor fills its memory, a copy if it has gaps.
        stride: stride of the tensor over ``values``; 0 in expanded dimensions.
        key: equal for tensors that hold the same values in the same memory.
    """

    values: torch.Tensor
    stride: tuple[int, ...]
    key: Hashable


def memory_layout(t: torch.Tensor) -> MemoryLayout:
    """Return the memory layout of a strided tensor."""
    t = t.detach()
    is_resolved = not t.is_neg() and not t.is_conj()
    if is_resolved and t.is_contiguous():
        return MemoryLayout(t.view(-1), t.stride(), flat_key(t))
    # store an expanded dimension once
    compact, repeats = _compact(t)
    is_dense = is_resolved and _is_dense(compact)
    key = flat_key(compact) if is_dense else key_of(t)
    if not is_dense:
        # keep the order in memory: channels_last stays channels_last
        compact = compact.resolve_conj().resolve_neg().clone(memory_format=torch.preserve_format)
    stride = compact.stride()
    if repeats:
        stride = tuple([0 if k in repeats else step for k, step in enumerate(stride)])
    return MemoryLayout(compact.as_strided((compact.numel(),), (1,)), stride, key)


def memory_key(t: torch.Tensor) -> Hashable:
    """Return the key of ``memory_layout`` of a strided tensor, without a copy of its values."""
    is_resolved = not t.is_neg() and not t.is_conj()
    compact = t if t.is_contiguous() else _compact(t.detach())[0]
    return flat_key(compact) if is_resolved and _is_dense(compact) else key_of(t)


def flat_key(t: torch.Tensor) -> Hashable:
    """Return a key like ``key_of`` that is equal for all dense tensors, of any shape, in the same memory."""
    storage = t.untyped_storage()._cdata  # noqa: SLF001 - as in ``key_of``
    version = t._version  # noqa: SLF001 - as in ``key_of``
    return storage, (t.storage_offset(), t.numel()), t.dtype, version


def has_no_gaps(t: torch.Tensor) -> bool:
    """True if the tensor fills its memory without gaps, so that ``memory_layout`` makes no copy."""
    return _is_dense(_compact(t)[0]) and not t.is_neg() and not t.is_conj()


def _compact(t: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """Return the tensor with its expanded dimensions (stride 0) narrowed to size 1, and their numbers."""
    if t.is_contiguous():
        return t, []
    steps = enumerate(zip(t.shape, t.stride(), strict=True))
    repeats = [k for k, (size, step) in steps if size > 1 and not step]
    for k in repeats:
        t = t.narrow(k, 0, 1)
    return t, repeats


def _is_dense(t: torch.Tensor) -> bool:
    """True if the elements fill a contiguous range of memory, in any order of dimensions, without overlap."""
    if t.is_contiguous():
        return True
    expected = 1
    for step, size in sorted(zip(t.stride(), t.shape, strict=True)):
        if size == 1:
            continue
        if step != expected:
            return False
        expected *= size
    return True


def key_of(t: torch.Tensor) -> Hashable:
    """Return a key that is equal for tensors with the same layout, dtype and version in the same storage.

    A lazy negation or conjugation is part of the layout.
    """
    # The address of the storage object, not of its memory: ``fully_shard`` frees the memory after a block, and the
    # weights of another block may be allocated there.
    storage = t.untyped_storage()._cdata  # noqa: SLF001 - no public way
    version = t._version  # noqa: SLF001 - another version has other values
    layout = t.storage_offset(), tuple(t.shape), t.stride(), t.is_neg(), t.is_conj()
    return storage, layout, t.dtype, version


class Entries:
    """The live entries of a forward pass, by the storage that their values came from.

    The address of a storage identifies it only while it is alive: within one forward pass another storage may get
    the same address. Each key is therefore stored with a weak reference to its storage, and is invalid once that
    has expired.
    """

    def __init__(self) -> None:
        """Start without entries."""
        self._known: dict[Hashable, tuple[ReferenceType[Entry], StorageWeakRef]] = {}

    def find(self, key: Hashable) -> Entry | None:
        """Return the live entry of a key; None if there is none."""
        known = self._known.get(key)
        if known is None:
            return None
        entry, storage = known[0](), known[1]
        if entry is None or storage.expired():
            del self._known[key]
            return None
        return entry

    def add(self, key: Hashable, entry: Entry, t: torch.Tensor) -> None:
        """Register the entry of a key, valid while the storage of ``t`` is alive."""
        self._known[key] = ref(entry), StorageWeakRef(t.untyped_storage())

    def clear(self) -> None:
        """Remove all entries."""
        self._known.clear()

    def __len__(self) -> int:
        """Return the number of registered keys, including invalid ones."""
        return len(self._known)


def storage_id(t: torch.Tensor) -> int:
    """Return the address of a tensor's storage object, which is unique among live storages."""
    return int(t.untyped_storage()._cdata)  # noqa: SLF001 - no public way


def num_own_references(t: torch.Tensor) -> int:
    """Return how many references to its storage a tensor accounts for: its own, and that of the base of a view."""
    return 1 + (t._base is not None)  # noqa: SLF001 - no public way


def is_held_elsewhere(t: torch.Tensor, num_own: int | None = None) -> bool:
    """True if the storage of ``t`` has more references than ``num_own``, by default those of ``t`` itself."""
    storage: Any = t.untyped_storage()
    # ``storage`` itself is one more reference
    most = 1 + (num_own_references(t) if num_own is None else num_own)
    return int(torch._C._storage_Use_Count(storage._cdata)) > most  # noqa: SLF001 - nobody else knows
