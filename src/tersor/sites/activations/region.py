"""One forward pass under compression: what autograd saves in it, and in which form."""

from __future__ import annotations

from typing import Any, Final, Protocol, Self

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional

from tersor.codecs import Codec
from tersor.sites.activations.attention import recomputed_attention
from tersor.sites.activations.balance import Balanced
from tersor.sites.activations.calls import DROPOUTS, WEIGHTED, Call
from tersor.sites.activations.decoding import Decoder
from tersor.sites.activations.entry import (
    Entries,
    Entry,
    Handle,
    Kept,
    Look,
    is_whole,
    key_of,
    look_at,
)
from tersor.sites.activations.forms import (
    Blank,
    Form,
    Whole,
    dense_parts,
    exact_form,
    nbytes_of,
)
from tersor.sites.activations.origin import PARAMETER, makes_zeros, origin_of, sums_to_one
from tersor.sites.activations.pooling import PoolIndices
from tersor.sites.activations.quality import Quality, Rule
from tersor.sites.activations.recomputing import Outputs, saves_input
from tersor.sites.activations.report import ELSEWHERE, PARAMETERS, Ledger
from tersor.sites.activations.until_end import UntilEnd, decided
from tersor.sites.activations.watching import Watch, untraced
from tersor.sites.activations.window import Windows, mean_square

Held = Handle | Kept
"""What autograd holds in place of a tensor."""

INTEGERS: Final = "exact: integers"
SMALL: Final = "exact: small"
EXACT_FLOATS: Final = "sparse or two values"
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
_SHARED_STORAGE_FACTOR: Final = 16
"""A small part of a storage so many times larger is copied: it would keep all of it."""


class Observer(Protocol):
    """Something that wants to know which weights got a lossy input."""

    def watch(self, weight: torch.Tensor, out: torch.Tensor, entries: list[Entry]) -> None:
        """Take a weight, the output that it made, and the entries of its input."""
        ...


@untraced
def _unpack(held: Held) -> torch.Tensor:
    return held.unpack()


class Region:
    """What one thread saves while the context is open."""

    def __init__(
        self,
        quality: Quality,
        ledger: Ledger,
        *,
        window_nbytes: int,
        min_nbytes: int,
        observer: Observer | None = None,
        balanced: Balanced | None = None,
    ) -> None:
        """Prepare hooks.

        Args:
            quality: gives the codec.
            ledger: counts what is saved.
            window_nbytes: see ``Window``.
            min_nbytes: smaller tensors are kept as they are.
            observer: asks for the errors of what is encoded.
            balanced: gives parts of the network a level of their own.
        """
        self._quality, self._ledger, self._observer = quality, ledger, observer
        self._balanced = balanced
        self._min_nbytes = min_nbytes
        self._entries, self._outputs = Entries(), Outputs()
        self._decoder = Decoder(window_nbytes)
        self._windows = Windows(window_nbytes, measures=observer is not None)
        self._until_end: list[UntilEnd] = []
        self._call: Call | None = None
        self.rules: list[Rule] = []
        # one object, to be told apart from the hooks of others
        self._pack_hook = self._pack
        self._hooks = saved_tensors_hooks(self._pack_hook, _unpack)
        self._watch: Any = Watch(self)

    def __enter__(self) -> Self:
        """Open the context.

        Raises:
            RuntimeError: hooks are disabled here; the sentence is that of whoever did it.
        """
        self._hooks.__enter__()
        self._watch.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Close it, and encode what still waits, without waiting for a device."""
        self._watch.__exit__(*error)
        self._hooks.__exit__()
        if error[0] is None:
            with torch.no_grad():
                self._encode_rest()
        self._windows.clear()
        self._entries.clear()
        self._outputs.clear()
        self._until_end.clear()
        # they refer to the region, which would wait for the collector with what backward decoded
        del self._watch, self._hooks, self._pack_hook

    @property
    def is_innermost(self) -> bool:
        """True unless others, as activation checkpointing, hook saved tensors inside the context."""
        hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)  # noqa: SLF001
        return hooks is not None and hooks[0] is self._pack_hook

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a torch function with hooks that know of it."""
        outer, self._call = self._call, Call(func, args, kwargs)
        try:
            if func is functional.scaled_dot_product_attention and self._call.records:
                return recomputed_attention(*args, **kwargs)
            out = func(*args, **kwargs)
            if self._call.source is not None and self._recomputes:
                self._outputs.note(self._call, func, out)
            if self._observer is not None and self._call.name in WEIGHTED and self._call.coded:
                self._observer.watch(self._call.tensors[1], out, self._call.coded)
            return out
        finally:
            self._call = outer

    @untraced
    def _pack(self, t: torch.Tensor) -> Held:
        """Return what autograd holds in place of ``t``."""
        if t.layout is not torch.strided or type(t) not in _PLAIN:
            return self._keep_layout(t)
        origin, nbytes = origin_of(t), t.nbytes
        if origin == PARAMETER:
            # its memory is there in any case
            self._ledger.keep(PARAMETERS, nbytes, nbytes)
            return Kept.of(t)
        if nbytes < self._min_nbytes:
            return self._keep_small(t)
        handle = self._pack_special(t, origin)
        if handle is not None:
            return handle
        reason = self._why_exact(t, origin)
        if not reason:
            return self._pack_lossy(t, origin)
        # of constants the user may hold the memory: features, the matrix of a graph
        return self._keep(t, reason, waits=not origin or reason == INTEGERS)

    def _pack_special(self, t: torch.Tensor, origin: str) -> Handle | None:
        """Return the handle of what has an exact form of its own: pooling, masks; else None."""
        call = self._call
        if call is not None and call.is_pooling and (handle := self._pack_pooling(t, call)):
            return handle
        if t.dtype == torch.bool or (call is not None and not origin and call.name in DROPOUTS):
            return self._pack_mask(t)
        return None

    def _why_exact(self, t: torch.Tensor, origin: str) -> str:
        """Return why a tensor must not have an error, in the words of the report; empty if it may."""
        call, reason = self._call, ""
        if self.rules and self.rules[-1] is None:
            reason = "exact: rule"
        elif call is None:
            reason = "exact: unknown function"
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
    ) -> Handle:
        """Keep a tensor as it is; if it ``waits``, until the end of the pass, where others may turn out to hold it."""
        if not is_whole(t):
            return self._keep_view(t, reason, waits)
        look = look_at(t)
        entry = self._known(look.key, "exact", t)
        if entry is None:
            entry = Entry(t, Whole(look.values), reason, self._ledger)
            self._entries.add((look.key, "exact"), entry, t)
            if waits:
                self._until_end.append(UntilEnd.of(entry, t, codec))
        return Handle(entry, tuple(t.shape), look.stride)

    def _keep_view(self, t: torch.Tensor, reason: str, waits: bool) -> Handle:
        """Keep a tensor with gaps, as a slice, in the memory that it looks at, once."""
        key = key_of(t), t.is_conj(), t.is_neg()
        entry = self._known(key, "view", t)
        if entry is None:
            entry = Entry(t, Whole(t.detach()), reason, self._ledger)
            self._entries.add((key, "view"), entry, t)
            if waits:
                self._until_end.append(UntilEnd.of(entry, t, stays=True))
        return Handle(entry)

    def _keep_layout(self, t: torch.Tensor) -> Handle:
        """Keep a sparse tensor, or one of a class of its own, as it is, once."""
        parts = dense_parts(t) if type(t) in _PLAIN else []
        if not parts:
            return Handle(Entry(t, Whole(t.detach()), "exact: layout", self._ledger))
        key = t.layout, tuple(t.shape), tuple(look_at(part).key for part in parts)
        entry = self._known(key, "exact", t)
        if entry is None:
            entry = Entry(t, Whole(t.detach()), "exact: layout", self._ledger)
            self._entries.add((key, "exact"), entry, parts[-1])
            self._until_end.append(UntilEnd.of(entry, t, stays=True))
        return Handle(entry)

    def _keep_small(self, t: torch.Tensor) -> Held:
        storage_nbytes = t.untyped_storage().nbytes()
        if storage_nbytes > _SHARED_STORAGE_FACTOR * max(t.nbytes, self._min_nbytes):
            return Handle(Entry(t, Whole(t.detach().clone()), SMALL, self._ledger))
        self._ledger.keep(SMALL, t.nbytes, t.nbytes)
        return Kept.of(t)

    def _known(self, key: Any, kind: str, t: torch.Tensor) -> Entry | None:
        entry = self._entries.find((key, kind))
        if entry is not None:
            entry.is_shared = True
            self._ledger.duplicate(nbytes_of(t))
        return entry

    def _pack_pooling(self, t: torch.Tensor, call: Call) -> Handle | None:
        """Keep no input, and of indices their places in windows; None if this is neither."""
        look = look_at(t)
        form: Form | None = None
        if t.is_floating_point():
            form = Blank(look.values.numel(), t.dtype, t.device)
            entry = Entry(t, form, "pooling input", self._ledger)
            if self._known(look.key, "lossy", t) or self._known(look.key, "exact", t):
                # autograd would hold it once
                self._ledger.count_less(entry)
            return Handle(entry, tuple(t.shape), look.stride)
        windows = call.windows()
        if windows is not None and t.dtype == torch.int64:
            dense = look.values.as_strided(t.shape, look.stride)
            form = PoolIndices.of(dense, windows)
        if form is None:
            return None
        return Handle(Entry(t, form, "pooling indices", self._ledger), tuple(t.shape), look.stride)

    def _pack_mask(self, t: torch.Tensor) -> Handle:
        """Keep masks in one bit per value."""
        look = look_at(t)
        entry = self._known(look.key, "exact", t)
        if entry is None:
            form = exact_form(look.values)
            if form is None:
                return self._keep(t, "exact: mask")
            entry = Entry(t, form, "masks", self._ledger)
            self._entries.add((look.key, "exact"), entry, t)
        return Handle(entry, tuple(t.shape), look.stride)

    def _pack_lossy(self, t: torch.Tensor, origin: str) -> Handle:
        """Encode a tensor, or decide at the end of the pass if it is a constant that others may hold."""
        if not origin:
            # zeros of features are as telling as those behind a ReLU
            is_survey = self._balanced is not None and self._balanced.is_survey
            codec = None if is_survey else self._codec(has_zeros=True)
            return self._keep(t, "exact: input", waits=True, codec=codec)
        look = look_at(t)
        entry = self._known(look.key, "exact", t) or self._known(look.key, "lossy", t)
        if entry is None:
            entry = self._recomputed(t, look) or self._encoded(t, look, makes_zeros(origin))
            self._entries.add((look.key, "lossy"), entry, t)
        handle, call = Handle(entry, tuple(t.shape), look.stride), self._call
        if call is not None:
            call.coded.append(entry)
            if call.source is None and saves_input(t, look, call):
                call.source = handle, t.dtype
        return handle

    @property
    def _recomputes(self) -> bool:
        """True if outputs may be computed of decoded inputs: a rule is set for neither, and no bound promised for both."""
        return not self.rules and not self._codec().takes_bound()

    def _recomputed(self, t: torch.Tensor, look: Look) -> Entry | None:
        """Return an entry without memory of its own; None if the values follow from nothing else."""
        form = self._outputs.find(t, look, self._call) if self._recomputes else None
        if form is None:
            return None
        # backward needs the source for the function itself, too
        form.source.entry.is_shared = True
        entry = Entry(t, form, "recomputed", self._ledger)
        if self._observer is not None:
            # what waits has no error yet
            self._windows.flush()
            entry.mse = mean_square(form.restored(), look.values)
        return entry

    def _encoded(self, t: torch.Tensor, look: Look, has_zeros: bool) -> Entry:
        factor = 1.0 if self._balanced is None else self._factor(self._balanced, t)
        if factor is None:
            return Entry(t, Whole(look.values), "exact: survey", self._ledger)
        entry = Entry(t, Whole(look.values), "waiting", self._ledger, self._decoder.values_of)
        self._encode(entry, look.values, self._codec(has_zeros=has_zeros, factor=factor))
        return entry

    def _factor(self, balanced: Balanced, t: torch.Tensor) -> float | None:
        """Return the factor of the level at which ``t`` is encoded; None if it must stay exact."""
        if self.rules and isinstance(self.rules[-1], Codec):
            # which has no level
            return None if balanced.is_survey else 1.0
        found = balanced.factor("" if self._call is None else self._call.name, t.numel())
        return None if found is None else self._quality.usable(found)

    def _codec(self, *, has_zeros: bool = False, factor: float = 1.0) -> Codec:
        rule = self.rules[-1] if self.rules else 1.0
        if isinstance(rule, Codec):
            return rule
        own = factor if rule is None else factor * rule
        return self._quality.codec(has_zeros=has_zeros, factor=own)

    def _encode(self, entry: Entry, values: torch.Tensor, codec: Codec) -> None:
        self._ledger.num_coded_values += values.numel()
        self._ledger.coded_nbytes += values.nbytes
        self._windows.add(entry, values, codec)

    def _encode_rest(self) -> None:
        """Decide on constants and integers, now that it shows who else holds them, and encode what waits."""
        for plan in self._until_end:
            if plan.outlived_its_entry:
                self._ledger.move(plan.reason, ELSEWHERE, plan.nbytes)
        for plan, entry, is_held_elsewhere in decided(self._until_end):
            if is_held_elsewhere:
                entry.replace(entry.form, ELSEWHERE)
            elif not plan.stays:
                self._shrink(entry, entry.form.restored(), plan.codec)
        self._windows.flush()

    def _shrink(self, entry: Entry, values: torch.Tensor, codec: Codec | None) -> None:
        """Let a small exact form take over, else that of the codec, if one is given."""
        form = exact_form(values)
        if form is not None:
            has_fractions = values.is_floating_point() or values.is_complex()
            entry.replace(form, EXACT_FLOATS if has_fractions else "integers")
        elif codec is not None and codec.supports(values.dtype):
            self._encode(entry, values, codec)
