"""One piece of memory that autograd saved, however often it did, and its form until backward."""

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
    """Values in memory order, and the version they had when they were saved.

    Attributes:
        form: in which they wait; replaced when a window is encoded.
        reason: why it is that form, as the report says.
        is_shared: True if autograd saved the values more than once.
        mse: mean square of what decoding changes, one float on the device, where it is measured.
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
        """Count the memory of ``form`` until the entry is gone; ``restore`` decodes it together with others."""
        self._version = saved._version  # noqa: SLF001 - what autograd itself compares
        # shares the counter of versions with ``saved``, and no memory: changes in place are seen after the
        # memory is gone
        self._counter = saved.detach()
        if saved.layout is torch.strided:
            self._counter.data = _nothing(saved.dtype, saved.device)
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
        """Let another form of the same values take over."""
        self._ledger.release(self, self._held_nbytes)
        self._form, self.reason, self._held_nbytes = form, reason or self.reason, form.nbytes
        self._ledger.hold(self, self._held_nbytes)

    def __del__(self) -> None:
        """Count the memory as free."""
        # an entry may be gone before it is made
        nbytes = getattr(self, "_held_nbytes", None)
        if nbytes is not None:
            self._ledger.freed(self.reason, nbytes)

    @property
    def is_unchanged(self) -> bool:
        """True if the tensor was not changed in place since it was saved."""
        return self._counter._version == self._version  # noqa: SLF001 - as above

    def restored(self) -> torch.Tensor:
        """Return the values, flat.

        Raises:
            RuntimeError: the tensor was changed in place since, as autograd raises it without hooks.
        """
        _check_unchanged(self._counter, self._version)
        return self._form.restored() if self._restore is None else self._restore(self)


@cache
def _nothing(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device=device)


def _check_unchanged(t: torch.Tensor, version: int) -> None:
    found = t._version  # noqa: SLF001 - what autograd itself compares
    if found != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: [{t.type()}] is at version {found}; expected version {version} instead; compute on a "
            "copy, or out of place"
        )


class Kept(NamedTuple):
    """What autograd holds in place of a tensor that stays as it is, and of which nobody counts when it is freed.

    Attributes:
        values: without its graph.
        version: that it had when it was saved.
    """

    values: torch.Tensor
    version: int

    @classmethod
    def of(cls, t: torch.Tensor) -> Kept:
        """Hold a tensor."""
        return cls(t.detach(), t._version)  # noqa: SLF001 - as above

    def unpack(self) -> torch.Tensor:
        """Return the tensor; see ``Entry.restored``."""
        _check_unchanged(self.values, self.version)
        return self.values


class Handle(NamedTuple):
    """What autograd holds in place of a tensor: an entry, and how the tensor looks at it.

    Without shape and stride, the entry holds the tensor itself.
    """

    entry: Entry
    shape: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None

    def unpack(self) -> torch.Tensor:
        """Return the tensor, in its memory format; never the one that was saved, which would keep its graph."""
        values = self.entry.restored().detach()
        if self.shape is None or self.stride is None:
            return values
        return values.as_strided(self.shape, self.stride)


class Look(NamedTuple):
    """How a tensor looks at memory: dense values in memory order, and the way back.

    Attributes:
        values: flat; a view where the tensor is dense, a copy where it has gaps.
        stride: of the tensor over ``values``.
        key: equal for tensors of the same values in the same memory.
    """

    values: torch.Tensor
    stride: tuple[int, ...]
    key: Hashable


def look_at(t: torch.Tensor) -> Look:
    """Return how a strided tensor looks at its memory."""
    t = t.detach()
    if t.is_contiguous() and not t.is_neg() and not t.is_conj():
        values = t.view(-1)
        return Look(values, t.stride(), key_of(values))
    # a dimension that repeats memory is kept once
    compact, repeats = _compact(t)
    is_dense = is_whole(t)
    if not is_dense:
        # in the order of memory: channels that were last stay last
        compact = compact.resolve_conj().resolve_neg().clone(memory_format=torch.preserve_format)
    stride = tuple(0 if k in repeats else step for k, step in enumerate(compact.stride()))
    values = compact.as_strided((compact.numel(),), (1,))
    return Look(values, stride, key_of(values if is_dense else t))


def is_whole(t: torch.Tensor) -> bool:
    """True if ``look_at`` needs no copy."""
    return _is_dense(_compact(t)[0]) and not t.is_neg() and not t.is_conj()


def _compact(t: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """Return the tensor without the dimensions that repeat memory, and these."""
    if t.is_contiguous():
        return t, []
    steps = enumerate(zip(t.shape, t.stride(), strict=True))
    repeats = [k for k, (size, step) in steps if size > 1 and not step]
    for k in repeats:
        t = t.narrow(k, 0, 1)
    return t, repeats


def _is_dense(t: torch.Tensor) -> bool:
    """True if the elements fill a piece of memory, each place once."""
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
    """Return a key that is equal for tensors that look in the same way at the same memory."""
    # its own place, not that of its memory, which ``fully_shard`` frees behind a block, so that other weights get it
    storage = t.untyped_storage()._cdata  # noqa: SLF001 - no public way
    version = t._version  # noqa: SLF001 - another version has other values
    return storage, t.storage_offset(), tuple(t.shape), t.stride(), t.dtype, version


class Entries:
    """Entries that are alive, by the storage that they were made of.

    The place of a storage identifies it only while it is alive: it is given away again within one forward pass. So
    each key comes with a weak reference to its storage, and counts until that has expired.
    """

    def __init__(self) -> None:
        """Start without entries."""
        self._known: dict[Hashable, tuple[ReferenceType[Entry], StorageWeakRef]] = {}

    def find(self, key: Hashable) -> Entry | None:
        """Return the entry of the same values in the same memory; None if there is none."""
        known = self._known.get(key)
        if known is None:
            return None
        entry, storage = known[0](), known[1]
        if entry is None or storage.expired():
            del self._known[key]
            return None
        return entry

    def add(self, key: Hashable, entry: Entry, t: torch.Tensor) -> None:
        """Remember an entry of the memory of ``t``."""
        self._known[key] = ref(entry), StorageWeakRef(t.untyped_storage())

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()

    def __len__(self) -> int:
        """Return the number of entries that are remembered."""
        return len(self._known)


def storage_place(t: torch.Tensor) -> int:
    """Return what tells the storage of a tensor from others that are alive."""
    return int(t.untyped_storage()._cdata)  # noqa: SLF001 - no public way


def own_uses(t: torch.Tensor) -> int:
    """Return how many objects hold the memory of a tensor for it: itself, and the one that it is a view of."""
    return 1 + (t._base is not None)  # noqa: SLF001 - no public way


def is_held_elsewhere(t: torch.Tensor, num_own: int | None = None) -> bool:
    """True if others than ``t`` use its memory, or more than ``num_own`` objects in all."""
    storage: Any = t.untyped_storage()
    # and the object that is asked
    most = 1 + (own_uses(t) if num_own is None else num_own)
    return int(torch._C._storage_Use_Count(storage._cdata)) > most  # noqa: SLF001 - nobody else knows
