"""The hooks of one forward pass under compression: they choose the form of every tensor that autograd saves."""

from __future__ import annotations

from typing import Any, Final, Protocol, Self

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from tersor.codecs import Codec
from tersor.sites.activations.attention import recomputed_attention
from tersor.sites.activations.balance import PassFactors
from tersor.sites.activations.calls import ATTENTION, DROPOUTS, RELUS, WEIGHTED, Call
from tersor.sites.activations.clamping import Limits, PassedGradients
from tersor.sites.activations.decoding import Decoder
from tersor.sites.activations.entry import (
    Entries,
    Entry,
    MemoryLayout,
    SavedUnchanged,
    SavedView,
    has_no_gaps,
    key_of,
    memory_key,
    memory_layout,
    storage_id,
)
from tersor.sites.activations.forms import (
    Form,
    NoValues,
    Unchanged,
    dense_parts,
    exact_form,
    nbytes_of,
    protect_from_reuse,
)
from tersor.sites.activations.origin import (
    PARAMETER,
    has_own_memory,
    makes_zeros,
    origin_of,
    sums_to_one,
)
from tersor.sites.activations.pooling import PoolIndices
from tersor.sites.activations.quality import Quality, Rule
from tersor.sites.activations.recomputing import Outputs, saves_input
from tersor.sites.activations.report import HELD_BY_OTHERS, PARAMETERS, UNSEEN, Ledger
from tersor.sites.activations.until_end import PendingEntry, decided
from tersor.sites.activations.watching import CallMode, untraced
from tersor.sites.activations.window import EncodingWindows, mean_square

SavedTensor = SavedView | SavedUnchanged
"""What autograd holds in place of a tensor."""

CAST_WEIGHTS: Final = "exact: cast weights"
INTEGERS: Final = "exact: integers"
SMALL: Final = "exact: small"
EXACT_FLOATS: Final = "sparse or two values"
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
_SHARED_STORAGE_FACTOR: Final = 16
"""A small tensor in a storage larger by this factor is copied, because saving it would hold the whole storage."""


class Observer(Protocol):
    """Receives the weights whose saved input is lossy."""

    def watch(self, weight: torch.Tensor, out: torch.Tensor, entries: list[Entry]) -> None:
        """Observe a weight, the output computed with it, and the entries of its input."""
        ...

    def miss(self, name: str) -> None:
        """Note a function whose saved errors affect gradients in a way that is not observed."""
        ...


@untraced
def _unpack(held: SavedTensor) -> torch.Tensor:
    return held.unpack()


class Region:
    """Packs the tensors that autograd saves in one thread while the context is open."""

    def __init__(
        self,
        quality: Quality,
        ledger: Ledger,
        *,
        window_nbytes: int,
        min_nbytes: int,
        observer: Observer | None = None,
        balanced: PassFactors | None = None,
    ) -> None:
        """Create the hooks without installing them.

        Args:
            quality: chooses the codec.
            ledger: counts what is saved.
            window_nbytes: see ``Window``.
            min_nbytes: tensors below this size are saved unchanged.
            observer: receives weights and the errors of their inputs; None if errors are not measured.
            balanced: factors of the level by part of the network; None for a single level.
        """
        self._quality, self._ledger, self._observer = quality, ledger, observer
        self.balanced = balanced
        self._min_nbytes = min_nbytes
        self._entries, self._outputs = Entries(), Outputs()
        self._decoder = Decoder(window_nbytes)
        self._windows = EncodingWindows(window_nbytes, measures=observer is not None)
        self._until_end: list[PendingEntry] = []
        self._casts: dict[int, StorageWeakRef] = {}
        self._call: Call | None = None
        self.rules: list[Rule] = []
        # one bound method, so that ``is_innermost`` can compare identities
        self._pack_hook = self._pack
        self._hooks = saved_tensors_hooks(self._pack_hook, _unpack)
        self._watch: Any = CallMode(self)

    def __enter__(self) -> Self:
        """Install the hooks.

        Raises:
            RuntimeError: hooks of saved tensors are disabled here; the message is from whoever disabled them.
        """
        self._hooks.__enter__()
        self._watch.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the hooks and, unless an exception passes, encode what is left; does not wait for its sizes."""
        self._watch.__exit__(*error)
        self._hooks.__exit__()
        try:
            if error[0] is None:
                with torch.no_grad():
                    self._encode_rest()
        finally:
            self._windows.clear()
            self._entries.clear()
            self._outputs.clear()
            self._until_end.clear()
            self._casts.clear()
            # They refer back to the region. Without the cycle it is freed at once, with everything that backward
            # decoded, not by the garbage collector.
            del self._watch, self._hooks, self._pack_hook

    @property
    def is_innermost(self) -> bool:
        """True unless other hooks of saved tensors, such as activation checkpointing's, were installed inside."""
        hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)  # noqa: SLF001
        return hooks is not None and hooks[0] is self._pack_hook

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a torch function; tensors saved meanwhile are attributed to it."""
        call = Call(func, args, kwargs)
        outer, self._call = self._call, call
        try:
            if func is functional.scaled_dot_product_attention and call.records:
                if self._observer is not None:
                    self._observer.miss(ATTENTION)
                return recomputed_attention(*args, **kwargs)
            out = func(*args, **kwargs)
            if call.source is not None and self._recomputes:
                self._outputs.note(call, func, out)
            if self._observer is not None and call.name in WEIGHTED and call.coded:
                self._observer.watch(call.tensors[1], out, call.coded)
            elif self._observer is not None and call.coded and not self._is_predicted(call):
                self._observer.miss(call.name)
            return out
        finally:
            self._call = outer

    def _is_predicted(self, call: Call) -> bool:
        """True if what was saved for a call harms gradients only as the closed form of the score assumes.

        The closed form sees errors in the inputs of weights.
        """
        return call.name in WEIGHTED or (call.name in RELUS and self._quality.keeps_zeros)

    @untraced
    def _pack(self, t: torch.Tensor) -> SavedTensor:
        """Return what autograd holds in place of ``t``: the pack hook."""
        if self._call is not None:
            self._call.num_saved += 1
        origin, nbytes = origin_of(t), nbytes_of(t)
        if origin == PARAMETER and has_own_memory(t):
            # its memory exists anyway
            self._ledger.count(PARAMETERS, nbytes, nbytes)
            return SavedUnchanged.of(t)
        if t.layout is not torch.strided or type(t) not in _PLAIN:
            return self._keep_layout(t)
        if origin == PARAMETER or nbytes < self._min_nbytes:
            is_small = nbytes < self._min_nbytes
            return self._keep_small(t, nbytes) if is_small else self._keep_cast(t)
        handle = self._pack_special(t, origin)
        if handle is not None:
            return handle
        reason = self._why_exact(t, origin)
        if not reason:
            return self._pack_lossy(t, origin)
        # the caller may hold the memory of constants anyway: features, the matrix of a graph
        return self._keep(t, reason, waits=not origin or reason == INTEGERS)

    def _pack_special(self, t: torch.Tensor, origin: str) -> SavedView | None:
        """Return a handle if ``t`` has an exact form of its own, as for pooling and masks; else None."""
        call = self._call
        if call is not None and call.is_pooling and (handle := self._pack_pooling(t, call)):
            return handle
        if t.dtype == torch.bool or (call is not None and not origin and call.name in DROPOUTS):
            return self._pack_mask(t)
        if call is not None and t.is_floating_point() and (limits := call.limits()) is not None:
            return self._pack_clamped(t, limits)
        return None

    def _why_exact(self, t: torch.Tensor, origin: str) -> str:
        """Return why a tensor must stay exact, as a row of the report; empty if it may have an error."""
        call, reason = self._call, ""
        if self.rules and self.rules[-1] is None:
            reason = "exact: rule"
        elif call is None:
            reason = UNSEEN
        elif not t.is_floating_point():
            reason = "exact: complex" if t.is_complex() else INTEGERS
        elif sums_to_one(origin):
            reason = "exact: softmax"
        elif not call.allows_error(t, is_constant=not origin):
            reason = f"exact: {call.name}"
        elif not self._codec().supports(t.dtype):
            reason = f"exact: {t.dtype}"
        return reason

    def _keep(
        self, t: torch.Tensor, reason: str, *, waits: bool = False, codec: Codec | None = None
    ) -> SavedView:
        """Save a tensor unchanged; if it ``waits``, decide on its form at the end of the pass.

        Args:
            t: a strided tensor.
            reason: row of the report.
            waits: True if others may turn out to hold the memory, which is known at the end only.
            codec: codec to encode it with at the end if they do not; None if it must stay exact.
        """
        if not has_no_gaps(t):
            return self._keep_view(t, reason, waits)
        look = memory_layout(t)
        entry = self._known(look.key, "exact", t)
        if entry is None:
            entry = Entry(t, Unchanged(look.values), reason, self._ledger)
            self._register(look.key, "exact", entry, t)
            if waits:
                self._until_end.append(PendingEntry.of(entry, t, codec))
        return SavedView(entry, tuple(t.shape), look.stride)

    def _keep_view(self, t: torch.Tensor, reason: str, waits: bool) -> SavedView:
        """Save a tensor with gaps, such as a slice, as a view of its memory; only once if it is saved again."""
        key = key_of(t)
        entry = self._known(key, "view", t)
        if entry is None:
            entry = Entry(t, Unchanged(t.detach()), reason, self._ledger)
            self._entries.add((key, "view"), entry, t)
            if waits:
                self._until_end.append(PendingEntry.of(entry, t, stays=True))
        return SavedView(entry)

    def _keep_layout(self, t: torch.Tensor) -> SavedView:
        """Save a sparse tensor or one of a subclass unchanged; a sparse one only once."""
        parts = dense_parts(t) if type(t) in _PLAIN else []
        if not parts:
            return SavedView(Entry(t, Unchanged(t.detach()), "exact: layout", self._ledger))
        key = t.layout, tuple(t.shape), tuple(memory_key(part) for part in parts)
        entry = self._known(key, "exact", t)
        if entry is None:
            entry = Entry(t, Unchanged(t.detach()), "exact: layout", self._ledger)
            self._entries.add((key, "exact"), entry, parts[-1])
            self._until_end.append(PendingEntry.of(entry, t, stays=True))
        return SavedView(entry)

    def _keep_small(self, t: torch.Tensor, nbytes: int) -> SavedTensor:
        storage_nbytes = t.untyped_storage().nbytes()
        if storage_nbytes > _SHARED_STORAGE_FACTOR * max(nbytes, self._min_nbytes):
            return SavedView(Entry(t, Unchanged(t.detach().clone()), SMALL, self._ledger))
        self._ledger.count(SMALL, nbytes, nbytes)
        return SavedUnchanged.of(t)

    def _keep_cast(self, t: torch.Tensor) -> SavedUnchanged:
        """Save a copy of a weight, such as autocast makes, unchanged; it counts once, and never as live."""
        storage = t.untyped_storage()
        address, nbytes = storage_id(t), storage.nbytes()
        known = self._casts.get(address)
        if known is None or known.expired():
            self._casts[address] = StorageWeakRef(storage)
            self._ledger.count(CAST_WEIGHTS, nbytes, nbytes)
        else:
            self._ledger.duplicate(nbytes)
        return SavedUnchanged.of(t)

    def _known(self, key: Any, kind: object, t: torch.Tensor) -> Entry | None:
        """Return the entry that holds the values of ``t`` in a form of this kind, if there is one."""
        entry = self._entries.find((key, kind))
        if entry is not None:
            entry.is_shared = True
            self._ledger.duplicate(nbytes_of(t))
        return entry

    def _register(self, key: Any, kind: object, entry: Entry, t: torch.Tensor) -> None:
        """Make ``_known`` find an entry; if the same values have another one, do not count the tensor again."""
        self._entries.add((key, kind), entry, t)
        if self._entries.find(key) is None:
            self._entries.add(key, entry, t)
        else:
            # autograd would hold it once
            self._ledger.duplicate(entry.original_nbytes)
            self._ledger.drop_original_bytes(entry)

    def _pack_pooling(self, t: torch.Tensor, call: Call) -> SavedView | None:
        """Save no values of an input, and indices as places in their windows; None if neither is possible."""
        look = memory_layout(t)
        form: Form | None = None
        if t.is_floating_point():
            form = NoValues(look.values.numel(), t.dtype, t.device)
            entry = Entry(t, form, "pooling input", self._ledger)
            self._register(look.key, "pooling", entry, t)
            protect_from_reuse(look.values)
            return SavedView(entry, tuple(t.shape), look.stride)
        windows = call.windows()
        if windows is not None and t.dtype == torch.int64:
            dense = look.values.as_strided(t.shape, look.stride)
            form = PoolIndices.of(dense, windows)
        if form is None:
            return None
        protect_from_reuse(look.values)
        return SavedView(
            Entry(t, form, "pooling indices", self._ledger), tuple(t.shape), look.stride
        )

    def _pack_mask(self, t: torch.Tensor) -> SavedView:
        """Save a mask in one bit per value if it has such a form, else unchanged."""
        look = memory_layout(t)
        entry = self._known(look.key, "exact", t)
        if entry is None:
            form = exact_form(look.values)
            if form is None:
                return self._keep(t, "exact: mask")
            protect_from_reuse(look.values)
            entry = Entry(t, form, "masks", self._ledger)
            self._register(look.key, "exact", entry, t)
        return SavedView(entry, tuple(t.shape), look.stride)

    def _pack_clamped(self, t: torch.Tensor, limits: Limits) -> SavedView:
        """Save in one bit per value which gradients pass."""
        look = memory_layout(t)
        entry = self._known(look.key, limits, t)
        if entry is None:
            form = PassedGradients.of(look.values, limits)
            protect_from_reuse(look.values)
            entry = Entry(t, form, "masks", self._ledger)
            self._register(look.key, limits, entry, t)
        return SavedView(entry, tuple(t.shape), look.stride)

    def _pack_lossy(self, t: torch.Tensor, origin: str) -> SavedView:
        """Encode a tensor; a constant, which others may hold, only at the end of the pass."""
        if not origin:
            # zeros of features carry information, like those behind a ReLU
            is_survey = self.balanced is not None and self.balanced.is_survey
            codec = None if is_survey else self._codec(has_zeros=True)
            return self._keep(t, "exact: input", waits=True, codec=codec)
        look = memory_layout(t)
        # parts with different rules get values of their own, and so does a function that needs signs
        rule: object = self.rules[-1] if self.rules else "lossy"
        needs_signs = self._call is not None and self._call.needs_signs
        entry = self._known(look.key, "exact", t) or self._known(look.key, (rule, True), t)
        if entry is None and not needs_signs:
            entry = self._known(look.key, (rule, False), t)
        if entry is None:
            has_zeros = needs_signs or makes_zeros(origin)
            entry = self._recomputed(t, look) or self._encoded(t, look, has_zeros)
            self._register(look.key, (rule, has_zeros), entry, t)
        handle, call = SavedView(entry, tuple(t.shape), look.stride), self._call
        if call is not None:
            call.coded.append(entry)
            if call.source is None and saves_input(t, look, call):
                call.source = handle, t.dtype
        return handle

    @property
    def _recomputes(self) -> bool:
        """True if outputs may be recomputed from decoded inputs: not under a rule, nor with a bound.

        A function of a decoded value does not keep the bound of that value.
        """
        return not self.rules and not self._codec().takes_bound()

    def _recomputed(self, t: torch.Tensor, look: MemoryLayout) -> Entry | None:
        """Return an entry that holds no memory; None if the values cannot be recomputed from a saved input."""
        form = self._outputs.find(t, look, self._call)
        if form is None or not self._recomputes:
            return None
        # backward also needs the source for the function itself
        form.source.entry.is_shared = True
        entry = Entry(t, form, "recomputed", self._ledger)
        if self._observer is not None:
            # restoring a tensor that is not encoded yet would give the exact values, and no error
            self._windows.flush()
            entry.mse = mean_square(form.restored(), look.values)
        return entry

    def _encoded(self, t: torch.Tensor, look: MemoryLayout, has_zeros: bool) -> Entry:
        factor = 1.0 if self.balanced is None else self._factor(self.balanced, t)
        if factor is None:
            return Entry(t, Unchanged(look.values), "exact: survey", self._ledger)
        entry = Entry(t, Unchanged(look.values), "waiting", self._ledger, self._decoder.values_of)
        self._encode(entry, look.values, self._codec(has_zeros=has_zeros, factor=factor))
        return entry

    def _factor(self, balanced: PassFactors, t: torch.Tensor) -> float | None:
        """Return the factor of the level at which ``t`` is encoded; None if it must stay exact."""
        if self.rules and isinstance(self.rules[-1], Codec):
            # a codec given by a rule has no level to multiply
            return None if balanced.is_survey else 1.0
        found = balanced.factor("" if self._call is None else self._call.name, t.numel())
        return None if found is None else self._quality.clipped_factor(found)

    def _codec(self, *, has_zeros: bool = False, factor: float = 1.0) -> Codec:
        # most passes have no rules, and ``isinstance`` with an abstract class is slow
        if not self.rules:
            return self._quality.codec(has_zeros=has_zeros, factor=factor)
        rule = self.rules[-1]
        if isinstance(rule, Codec):
            return rule
        own = factor if rule is None else factor * rule
        return self._quality.codec(has_zeros=has_zeros, factor=own)

    def _encode(self, entry: Entry, values: torch.Tensor, codec: Codec) -> None:
        self._ledger.num_coded_values += values.numel()
        self._ledger.coded_nbytes += values.nbytes
        self._windows.add(entry, values, codec)

    def _encode_rest(self) -> None:
        """Decide on constants and integers, depending on whether others hold them, and flush the windows."""
        for plan in self._until_end:
            if plan.outlived_its_entry:
                self._ledger.move(plan.reason, HELD_BY_OTHERS, plan.nbytes)
        for plan, entry, is_held_elsewhere in decided(self._until_end):
            if is_held_elsewhere:
                entry.replace(entry.form, HELD_BY_OTHERS)
            elif not plan.stays:
                self._shrink(entry, entry.form.restored(), plan.codec)
        self._windows.flush()

    def _shrink(self, entry: Entry, values: torch.Tensor, codec: Codec | None) -> None:
        """Replace an unchanged form by a small exact one, or else encode the values if a codec is given."""
        form = exact_form(values)
        if form is not None:
            has_fractions = values.is_floating_point() or values.is_complex()
            entry.replace(form, EXACT_FLOATS if has_fractions else "integers")
        elif codec is not None and codec.supports(values.dtype):
            self._encode(entry, values, codec)
