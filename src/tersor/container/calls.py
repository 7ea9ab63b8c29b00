"""Validation of lists of tensors, and their grouping into calls of codecs.

A training loop passes lists of the same shapes and codecs again and again. The result of validating such a
list is cached: inspecting 26 tensors one by one takes the host as long as encoding them takes a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Final

import torch

from tersor.codecs.arguments import check_num_values, checked_out
from tersor.codecs.codec import Codec
from tersor.codecs.lru_cache import LruCache
from tersor.codecs.registry import check_is_codec
from tersor.container.batch import Batch
from tersor.container.new_tensors import NewTensors
from tersor.errors import SpecError
from tersor.kernels.batch.encoded_list import EncodedList, Undecoded
from tersor.kernels.runtime.cpu_runs import split_by_nbytes
from tersor.kernels.runtime.sparing import is_sparing
from tersor.kernels.runtime.tensor_guard import are_plain, guard_of
from tersor.tracing import refuse_transformed
from tersor.types import TensorInfo, check_tensor

Group = tuple[Codec, list[int]]
"""A codec, and the positions of the tensors that it processes in one call."""
_MAX_FORMS: Final = 16
"""Forms cached per list of codecs and shape of the first tensor; a new list is compared with up to all of them, in
1.3 us each."""


class ListForm:
    """Cached facts about a list that passed all checks; they hold for every list of the same form.

    Attributes:
        groups: the codec calls for the whole list.
        is_plain: result of ``are_plain``; True for new tensors.
        encode_again: encodes other tensors of this form like the last ones; None unless the form has a single
            group for which that is possible.
        undecoded: state of the last list decoded in one call; its ``again`` and ``decode`` serve other lists.
        new_tensors: allocator of the outputs, if they can share one allocation.
    """

    __slots__ = (
        "_codecs", "_infos", "_matches", "encode_again", "groups", "is_plain", "new_tensors", "undecoded",
    )  # fmt: skip

    def __init__(
        self,
        codecs: tuple[Codec, ...],
        groups: list[Group],
        tensors: Sequence[torch.Tensor],
        infos: list[TensorInfo] | None = None,
        new_tensors: NewTensors | None = None,
    ) -> None:
        """Record the facts about a list of given tensors, or of new ones if ``tensors`` is empty.

        The codecs are referenced because they are identified by ``id``, which Python would otherwise reuse.
        """
        self._codecs, self.groups, self.new_tensors = codecs, groups, new_tensors
        self._infos, self._matches = infos, guard_of(tensors)
        self.is_plain = are_plain(tensors)
        self.encode_again: Callable[[Sequence[torch.Tensor]], EncodedList | None] | None = None
        self.undecoded: Undecoded | None = None

    @property
    def is_known(self) -> bool:
        """True if ``matches`` can distinguish lists of this form from others."""
        return self._matches is not None

    def matches(self, tensors: Sequence[Any], infos: list[TensorInfo] | None = None) -> bool:
        """True if a list with equally many tensors and infos has this form."""
        return self._infos == infos and self._matches is not None and self._matches(*tensors)

    def repeat(self, encoded: EncodedList) -> None:
        """Encode further lists of this form like ``encoded``, if that is possible and memory is not short."""
        if is_sparing():
            return
        is_repeatable = len(self.groups) == 1 and self.is_plain
        self.encode_again = encoded.again if is_repeatable else None


_MAX_LISTS: Final = 1024
"""A training step has 32 lists of saved activations to encode and as many to decode."""
_KNOWN: Final[LruCache[list[ListForm]]] = LruCache(_MAX_LISTS)
"""Forms of lists that passed all checks, newest first, by the ids of their codecs and the shape of the first tensor."""


def _known_form(
    key: Hashable, tensors: Sequence[Any], infos: list[TensorInfo] | None = None
) -> ListForm | None:
    for form in _KNOWN.get(key) or ():
        if form.matches(tensors, infos):
            return form
    return None


def _remember(key: Hashable, form: ListForm) -> ListForm:
    if form.is_known:
        _KNOWN.put(key, [form, *(_KNOWN.get(key) or ())][:_MAX_FORMS])
    return form


def _first_shape(tensors: Sequence[Any]) -> Hashable:
    """Return the shape of the first tensor, which distinguishes most lists; None without one."""
    first = next(iter(tensors), None)
    return tuple(first.shape) if isinstance(first, torch.Tensor | TensorInfo) else None


def form_to_encode(tensors: Sequence[torch.Tensor], codecs: Sequence[Codec]) -> ListForm:
    """Return the form of a list to encode.

    Raises:
        SpecError: the lists differ in length, or a codec cannot encode its tensor as one payload.
    """
    check_is_list(tensors, "tensors")
    held = _held(codecs)
    key = (form_to_encode, len(tensors), _first_shape(tensors), *map(id, held))
    form = _known_form(key, tensors)
    if form is None:
        _check_can_encode(tensors, held)
        form = _remember(key, ListForm(held, _groups(held, tensors, range(len(held))), tensors))
    return form


def form_to_decode(
    infos: Sequence[TensorInfo],
    codecs: Sequence[Codec],
    out: Sequence[torch.Tensor] | None,
    num_payloads: int,
    device: torch.device,
) -> ListForm:
    """Return the form of a list to decode into ``out``, or into new tensors.

    Raises:
        SpecError: the lists differ in length, a codec does not support a dtype, or ``out`` does not match.
    """
    held, wanted = _held(codecs), list(infos)
    given = () if out is None else out
    shape = _first_shape(wanted)
    key = (form_to_decode, device, num_payloads, shape, out is None, len(given), *map(id, held))
    form = _known_form(key, given, wanted)
    if form is None:
        check_can_decode(num_payloads, infos, held)
        groups = _groups(held, infos, range(len(held)))
        if out is not None:
            checked_targets(infos, out, [device] * len(infos))
        new_tensors = NewTensors.of(infos, device) if out is None else None
        form = _remember(key, ListForm(held, groups, given, wanted, new_tensors))
    return form


def _held(codecs: Sequence[Codec]) -> tuple[Codec, ...]:
    """Return the codecs as a tuple: a sequence may create its items on access."""
    if isinstance(codecs, Codec):
        raise SpecError("give one codec per tensor, as in [codec] * len(tensors)")
    check_is_list(codecs, "codecs")
    return tuple(codecs)


def check_is_list(given: object, what: str) -> None:
    """Raise ``SpecError`` unless this has a length and places; a tensor is no list of its rows."""
    if type(given) is list or type(given) is tuple:
        return
    has_places = hasattr(given, "__len__") and hasattr(given, "__getitem__")
    if isinstance(given, torch.Tensor) or not has_places:
        raise SpecError(f"give a list of {what}, not {type(given).__name__}")


def check_batch(batch: object) -> None:
    """Raise ``SpecError`` for anything but a ``Batch``."""
    if not isinstance(batch, Batch):
        raise SpecError(f"expected what encode_batch returned, not {type(batch).__name__}")


def _check_can_encode(tensors: Sequence[torch.Tensor], codecs: Sequence[Codec]) -> None:
    """Raise ``SpecError`` unless each tensor has a codec that can encode it as one payload."""
    _check_codecs(codecs)
    if len(tensors) != len(codecs):
        raise SpecError(f"{len(tensors)} tensors need as many codecs, not {len(codecs)}")
    for x in tensors:
        check_tensor(x)
    refuse_transformed(tensors)
    _check_supported(codecs, [x.dtype for x in tensors])
    check_num_values(max((x.numel() for x in tensors), default=0))
    for x in tensors:
        if x.device != tensors[0].device:
            raise SpecError(
                f"the tensors of a list must be on one device, not on {tensors[0].device} and "
                f"{x.device}; move them, or encode each device's tensors apart"
            )


def check_can_decode(
    num_payloads: int, infos: Sequence[TensorInfo], codecs: Sequence[Codec]
) -> None:
    """Raise ``SpecError`` unless each payload has a shape, and a codec that supports its dtype."""
    _check_codecs(codecs)
    for info in infos:
        if not isinstance(info, TensorInfo):
            raise SpecError(
                f"expected a TensorInfo for each payload, not {type(info).__name__}; use TensorInfo.of"
            )
    if not num_payloads == len(infos) == len(codecs):
        raise SpecError(f"{num_payloads} payloads need as many shapes and codecs")
    _check_supported(codecs, [info.dtype for info in infos])


def _check_codecs(codecs: Sequence[Codec]) -> None:
    """Raise ``SpecError`` unless this is a list of codecs."""
    for codec in {id(codec): codec for codec in _held(codecs)}.values():
        check_is_codec(codec)


def _check_supported(codecs: Sequence[Codec], dtypes: Sequence[torch.dtype]) -> None:
    """Raise ``SpecError`` if a codec does not support its dtype; equal pairs are checked once."""
    pairs = zip(codecs, dtypes, strict=True)
    for codec, dtype in {(id(codec), dtype): (codec, dtype) for codec, dtype in pairs}.values():
        codec.check_supported(dtype)


def checked_targets(
    infos: Sequence[TensorInfo],
    out: Sequence[torch.Tensor] | None,
    devices: Sequence[torch.device],
) -> list[torch.Tensor]:
    """Return contiguous tensors to decode into: those of ``out`` where contiguous, else new ones."""
    wanted = [None] * len(infos) if out is None else out
    if len(wanted) != len(infos):
        raise SpecError(f"{len(infos)} payloads need as many outputs, not {len(wanted)}")
    return [
        checked_out(x, info, device) for x, info, device in zip(wanted, infos, devices, strict=True)
    ]


def calls_of(
    codecs: Sequence[Codec],
    tensors: Sequence[torch.Tensor],
    places: range,
) -> Iterator[Group]:
    """Yield the groups of a part of a list.

    On the CPU a call is limited to a few MiB, so that its Python overhead overlaps with the kernels of
    other threads.
    """
    for codec, group in _groups(codecs, tensors, places):
        if tensors[group[0]].device.type != "cpu":
            yield codec, group
            continue
        for run in split_by_nbytes(tensors, group):
            yield codec, run


def _groups(
    codecs: Sequence[Codec], tensors: Sequence[torch.Tensor | TensorInfo], places: range
) -> list[Group]:
    """Group positions by codec options other than the bound, and by dtype."""
    # most lists have one codec and one dtype
    if places and all(codecs[k] is codecs[places[0]] for k in places):
        dtype = tensors[places[0]].dtype
        if all(tensors[k].dtype is dtype for k in places):
            return [(codecs[places[0]], list(places))]
    groups: dict[tuple[Hashable, torch.dtype], Group] = {}
    # query a shared codec once; ``held`` keeps codecs alive, so that their ids stay unique
    held = [codecs[k] for k in places]
    known: dict[tuple[int, torch.dtype], list[int]] = {}
    for k, codec in zip(places, held, strict=True):
        kind = (id(codec), tensors[k].dtype)
        if kind not in known:
            key = (codec.batch_key(), tensors[k].dtype)
            known[kind] = groups.setdefault(key, (codec, []))[1]
        known[kind].append(k)
    return list(groups.values())
