"""Which tensors of a list share a call of a codec, and whether their codecs take them.

A training loop gives lists of the same shapes and codecs again and again. What was found of such a list is
remembered: asking 26 tensors one by one takes the host as long as a GPU works on them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import torch

from tersor.codecs.codec import Codec, are_plain, check_num_values, checked_out
from tersor.codecs.recent_forms import RecentForms
from tersor.codecs.registry import check_is_codec
from tersor.errors import SpecError
from tersor.kernels.runtime.cpu_runs import split_by_nbytes
from tersor.types import TensorInfo, check_tensor

Group = tuple[Codec, list[int]]
"""A codec, and the places of the tensors that it takes in one call."""
_KINDS: Final = frozenset((torch.Tensor, torch.nn.Parameter))
"""Classes whose tensors are remembered by ``_FACTS``; others may hide more."""
_IS_NESTED: Final = attrgetter("is_nested")
_FACTS: Final = attrgetter("shape", "dtype", "device", "layout")
_INFO_FACTS: Final = attrgetter("shape", "dtype")


class _Known(NamedTuple):
    """What was found of a list.

    Attributes:
        groups: of the whole list.
        codecs: held, so that no other codec takes the id of one of them.
    """

    groups: list[Group]
    codecs: tuple[Codec, ...]


_KNOWN: Final[RecentForms[_Known]] = RecentForms(max_forms=256)
"""By ids of codecs and facts of tensors, of lists that passed all checks."""


def groups_to_encode(tensors: Sequence[torch.Tensor], codecs: Sequence[Codec]) -> list[Group]:
    """Return the groups of a list that is to be encoded.

    Raises:
        SpecError: the lists differ in length, or a tensor cannot be encoded by its codec as one payload.
    """
    held, facts = _held(codecs), _facts(tensors)
    key = (groups_to_encode, tuple(map(id, held)), facts)
    known = _KNOWN.get(key)
    if known is not None:
        return known.groups
    _check_can_encode(tensors, held)
    groups = _groups(held, tensors, range(len(held)))
    if facts is not None:
        _KNOWN.put(key, _Known(groups, held))
    return groups


def groups_to_decode(
    infos: Sequence[TensorInfo],
    codecs: Sequence[Codec],
    out: Sequence[torch.Tensor] | None,
    num_payloads: int,
    device: torch.device,
) -> tuple[list[torch.Tensor], list[Group]]:
    """Return contiguous tensors to decode into, those of ``out`` where possible, and their groups.

    Raises:
        SpecError: the lists differ in length, a codec does not take a dtype, or ``out`` does not fit.
    """
    held, facts = _held(codecs), () if out is None else _facts(out)
    wanted = tuple(map(_INFO_FACTS, infos))
    key = (groups_to_decode, tuple(map(id, held)), facts, wanted, num_payloads, device)
    known = _KNOWN.get(key)
    if known is not None and out is not None and are_plain(out):
        return list(out), known.groups
    if known is None:
        check_can_decode(num_payloads, infos, held)
    targets = checked_targets(infos, out, [device] * len(infos))
    if known is not None:
        return targets, known.groups
    groups = _groups(held, targets, range(len(held)))
    if facts is not None:
        _KNOWN.put(key, _Known(groups, held))
    return targets, groups


def _held(codecs: Sequence[Codec]) -> tuple[Codec, ...]:
    """Return the codecs themselves: a sequence may make them when they are asked for."""
    if isinstance(codecs, Codec):
        raise SpecError("give one codec per tensor, as in [codec] * len(tensors)")
    return tuple(codecs)


def _facts(tensors: Sequence[torch.Tensor]) -> Hashable | None:
    """Return all that checks and groups depend on; None for tensors that may hide something else."""
    if not _KINDS.issuperset(map(type, tensors)) or any(map(_IS_NESTED, tensors)):
        return None
    return tuple(map(_FACTS, tensors))


def _check_can_encode(tensors: Sequence[torch.Tensor], codecs: Sequence[Codec]) -> None:
    """Raise ``SpecError`` unless each tensor has a codec that can encode it as one payload."""
    _check_codecs(codecs)
    if len(tensors) != len(codecs):
        raise SpecError(f"{len(tensors)} tensors need as many codecs, not {len(codecs)}")
    for x in tensors:
        check_tensor(x)
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
    """Raise ``SpecError`` unless each payload has a shape and a codec that takes its dtype."""
    _check_codecs(codecs)
    if not num_payloads == len(infos) == len(codecs):
        raise SpecError(f"{num_payloads} payloads need as many shapes and codecs")
    _check_supported(codecs, [info.dtype for info in infos])


def _check_codecs(codecs: Sequence[Codec]) -> None:
    """Raise ``SpecError`` unless this is a list of codecs."""
    for codec in {id(codec): codec for codec in _held(codecs)}.values():
        check_is_codec(codec)


def _check_supported(codecs: Sequence[Codec], dtypes: Sequence[torch.dtype]) -> None:
    """Raise ``SpecError`` for a codec with a dtype that it does not take; equal pairs count once."""
    pairs = zip(codecs, dtypes, strict=True)
    for codec, dtype in {(id(codec), dtype): (codec, dtype) for codec, dtype in pairs}.values():
        codec.check_supported(dtype)


def checked_targets(
    infos: Sequence[TensorInfo],
    out: Sequence[torch.Tensor] | None,
    devices: Sequence[torch.device],
) -> list[torch.Tensor]:
    """Return contiguous tensors to decode into: those of ``out`` where possible."""
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

    On the CPU a call ends after some MiB: what Python does for it then runs in parallel with the kernels
    of another thread.
    """
    for codec, group in _groups(codecs, tensors, places):
        if tensors[group[0]].device.type != "cpu":
            yield codec, group
            continue
        for run in split_by_nbytes(tensors, group):
            yield codec, run


def _groups(codecs: Sequence[Codec], tensors: Sequence[torch.Tensor], places: range) -> list[Group]:
    """Return the places of tensors that share all options but the bound, and the dtype."""
    # most lists have one codec and one dtype
    if places and all(codecs[k] is codecs[places[0]] for k in places):
        dtype = tensors[places[0]].dtype
        if all(tensors[k].dtype is dtype for k in places):
            return [(codecs[places[0]], list(places))]
    groups: dict[tuple[Hashable, torch.dtype], Group] = {}
    # a codec that several tensors share is asked once; held, so that ids stay their own
    held = [codecs[k] for k in places]
    known: dict[tuple[int, torch.dtype], list[int]] = {}
    for k, codec in zip(places, held, strict=True):
        kind = (id(codec), tensors[k].dtype)
        if kind not in known:
            key = (codec.batch_key(), tensors[k].dtype)
            known[kind] = groups.setdefault(key, (codec, []))[1]
        known[kind].append(k)
    return list(groups.values())
