"""Encoding of lists of tensors, each with its own codec, into a batch, and the inverse."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from numbers import Real
from typing import Final

import torch

from tersor.codecs.arguments import (
    all_materialised,
    check_payload_size,
    checked_payload,
    copy_if_strided,
)
from tersor.codecs.codec import Codec, check_written
from tersor.codecs.workspace import list_pieces
from tersor.container.batch import Batch, Part, runs_on_gpu
from tersor.container.calls import (
    Group,
    ListForm,
    calls_of,
    check_batch,
    check_can_decode,
    check_is_list,
    checked_targets,
    form_to_decode,
    form_to_encode,
)
from tersor.container.decoding import Decoding, Repetition, finish_left
from tersor.errors import CorruptDataError, SpecError
from tersor.kernels.batch.encoded_list import EncodedList, Undecoded
from tersor.kernels.payload import join_frame
from tersor.kernels.runtime import threads
from tersor.kernels.runtime.device_cache import on_device
from tersor.kernels.runtime.sparing import is_sparing, sparing_memory
from tersor.raw_bytes import padded
from tersor.types import TensorInfo

_LEAST_RATIO: Final = 0.1
"""Lower limit of expected ratios; a smaller one would only reserve memory that no payload can fill."""


def encode_batch(
    tensors: Sequence[torch.Tensor],
    codecs: Sequence[Codec],
    *,
    expected_ratio: float | None = None,
    max_workspace_nbytes: int | None = None,
) -> Batch:
    """Encode each tensor with its own codec into one buffer; tensors are encoded in parallel.

    On a GPU the host does not wait, except for codecs of varying size without a fused kernel (``huffman``,
    ``flat`` with bases, ``lz4``, ``zstd``). After one call with the same tensors, the call can be captured in
    a CUDA graph.

    Data that a fused kernel cannot code is stored exactly in ``buffer``; ``Batch.trimmed`` and
    ``Batch.payloads`` wait, and encode it in a second pass. For ``rows`` this is outliers and more than 256
    codes. For ``ans`` without a static table it is more than 256 codes, or more than 4096 in tensors of at
    least 2**18 values with a relative bound between 1/8192 and 1/512, below 1/512 with prediction.

    Args:
        tensors: on one device, of up to 2**30 values each.
        codecs: one per tensor.
        expected_ratio: original over encoded bytes. On a GPU it limits the capacity of ``buffer`` if ``flat``,
            ``delta``, ``ans``, or ``rows`` with rANS, with one set of options, encodes tensors of one dtype.
            Otherwise ``buffer`` has capacity for any values, as it does for tensors of at most 8192 values
            with ``flat``, and in calls on up to 32 MiB that are replayed (``set_graph_replay``). If payloads
            overflow, ``Batch.completed`` rewrites all of them into sufficient memory. It waits to find
            out, as does decoding; until then the tensors must not change.
        max_workspace_nbytes: most device memory to take beyond the tensors and ``buffer``; unlimited by
            default. A list that would take more is encoded in several consecutive calls with the same
            payload bytes. On a GPU the host waits for each call, and ``buffer`` is assembled on first access.

    Raises:
        SpecError: the lists differ in length, a tensor cannot be encoded, the ratio is not a positive
            number, or the limit is too low.

    Example:
        >>> from tersor import Bound, create
        >>> tensors = [torch.randn(4, 8), torch.randn(5)]
        >>> codecs = [create("rows", bound=Bound.relative(0.03)), create("half")]
        >>> batch = encode_batch(tensors, codecs)
        >>> infos = [TensorInfo.of(x) for x in tensors]
        >>> [tuple(y.shape) for y in decode_batch(batch, infos, codecs)]
        [(4, 8), (5,)]
    """
    form = form_to_encode(tensors, codecs)
    _check_ratio(expected_ratio)
    if max_workspace_nbytes is not None:
        return _encode_within(tensors, codecs, expected_ratio, max_workspace_nbytes)
    if runs_on_gpu(tensors):
        parts = _encode_again(form, tensors) or _encode(tensors, codecs, form.groups)
        form.repeat(parts[0].encoded)
        parts = _written(parts, tensors, expected_ratio)
        return Batch.of_parts(parts, *_joined(parts, tensors, codecs))

    def encode(start: int, stop: int) -> list[Part]:
        return _encode(tensors, codecs, calls_of(codecs, tensors, range(start, stop)))

    made = threads.run(encode, _split_by_size(tensors))
    return Batch.of_parts([part for parts in made for part in parts])


def _encode_within(
    tensors: Sequence[torch.Tensor],
    codecs: Sequence[Codec],
    expected_ratio: float | None,
    max_workspace_nbytes: int,
) -> Batch:
    """Encode a list in pieces that respect a workspace limit; a single piece is encoded as without one."""
    pieces = list_pieces(codecs, tensors, max_workspace_nbytes)
    with sparing_memory():
        if len(pieces) == 1:
            return encode_batch(tensors, codecs, expected_ratio=expected_ratio)
        payloads: list[torch.Tensor] = []
        for places in pieces:
            part = slice(places.start, places.stop)
            payloads += encode_batch(tensors[part], codecs[part]).payloads()
        return Batch.of(payloads)


def _encode_again(form: ListForm, tensors: Sequence[torch.Tensor]) -> list[Part] | None:
    """Encode a list of one group like the last one of its form; None if that is not possible."""
    again = None if is_sparing() else form.encode_again
    encoded = None if again is None else again(tensors)
    return None if encoded is None else [Part(form.groups[0][1], encoded)]


def _encode(
    xs: Sequence[torch.Tensor], codecs: Sequence[Codec], calls: Iterable[Group]
) -> list[Part]:
    parts = []
    for codec, group in calls:
        bounds = [codecs[k].own_bound() for k in group] if codec.takes_bound() else None
        parts.append(Part(group, codec.encode(all_materialised([xs[k] for k in group]), bounds)))
    return parts


def _written(
    parts: Sequence[Part], tensors: Sequence[torch.Tensor], expected_ratio: float | None
) -> list[Part]:
    """Return the parts with their payloads written; ``expected_ratio`` applies to a single part only."""
    nbytes = None
    if expected_ratio is not None and len(parts) == 1:
        original_nbytes = sum(x.nbytes for x in tensors)
        nbytes = math.ceil(original_nbytes / max(expected_ratio, _LEAST_RATIO))
    if nbytes is None and all(encoded.unwritten is None for _, encoded in parts):
        return list(parts)
    return [Part(places, encoded.written(nbytes)) for places, encoded in parts]


def _joined(
    parts: Sequence[Part], tensors: Sequence[torch.Tensor], codecs: Sequence[Codec]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the frame and the sizes of parts encoded on a GPU, without waiting."""
    for places, encoded in parts:
        if encoded.is_settled and encoded.device_sizes is None:
            # the frame is allocated by the sizes a codec states, and callers that can compute fixed sizes
            # never read them; fused kernels follow their layout
            for k, size in zip(places, encoded.sizes, strict=True):
                check_written(codecs[k], size, tuple(tensors[k].shape), tensors[k].dtype)
    buffers = [encoded.frame() for _, encoded in parts]
    sizes = [_device_sizes(encoded, buffers[0].device) for _, encoded in parts]
    if len(parts) == 1:
        return buffers[0], sizes[0]
    places = [k for part in parts for k in part.places]
    rooms = [
        padded(codec.max_nbytes(tuple(x.shape), x.dtype))
        for codec, x in zip(codecs, tensors, strict=True)
    ]
    frame, ordered = join_frame(buffers, sizes, places, rooms)
    return frame, ordered


def _device_sizes(encoded: EncodedList, device: torch.device) -> torch.Tensor:
    if encoded.device_sizes is not None:
        return encoded.device_sizes
    sizes = encoded.sizes
    return sizes if isinstance(sizes, torch.Tensor) else on_device(tuple(sizes), device)


def _check_ratio(ratio: float | None) -> None:
    if ratio is None:
        return
    is_number = isinstance(ratio, Real) and not isinstance(ratio, bool)
    if not (is_number and 0 < ratio < math.inf):
        raise SpecError(
            "expected_ratio, original over encoded bytes, must be a finite number above 0, not "
            f"{ratio!r}"
        )


def _check_to_decode(batch: Batch, infos: Sequence[TensorInfo], out: object) -> None:
    check_batch(batch)
    check_is_list(infos, "infos")
    if out is not None:
        check_is_list(out, "outputs")


def decode_batch(
    batch: Batch,
    infos: Sequence[TensorInfo],
    codecs: Sequence[Codec],
    out: Sequence[torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """Decode all tensors of a batch, in parallel, into ``out`` or into new tensors.

    On a GPU, new tensors of one dtype may share one allocation, which is freed with the last of them.

    Raises:
        SpecError: the lists differ in length, a codec does not support a dtype, or ``out`` does not match.
        CorruptDataError: the sizes or a payload are malformed.
    """
    _check_to_decode(batch, infos, out)
    batch = batch.completed() if batch.may_overflow else batch
    if batch.is_on_gpu:
        form = form_to_decode(infos, codecs, out, len(batch.sizes), batch.buffer.device)
        repeated = Repetition.of(batch, form, out)
        decoded = None if repeated is None else repeated.check()
        if decoded is None:
            decoded = _begin(batch, infos, form, out).check()
        return decoded if out is None else _copied(decoded, out)
    payloads = batch.payloads()
    if len(payloads) != len(infos):
        raise CorruptDataError(f"{len(infos)} payloads expected, {len(payloads)} present")
    check_can_decode(len(payloads), infos, codecs)
    for payload, info in zip(payloads, infos, strict=True):
        check_payload_size(payload, info.numel)
    targets = checked_targets(infos, out, [payload.device for payload in payloads])
    _decode([checked_payload(payload) for payload in payloads], targets, codecs)
    return targets if out is None else _copied(targets, out)


def _decode(
    payloads: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], codecs: Sequence[Codec]
) -> None:
    """Decode payloads whose sizes the host knows; waits for a GPU once."""

    def decode(start: int, stop: int) -> list[tuple[list[int], Undecoded]]:
        left = []
        for codec, places in calls_of(codecs, targets, range(start, stop)):
            encoded = EncodedList.apart([payloads[k] for k in places])
            undecoded = codec.decode(encoded, [targets[k] for k in places])
            if undecoded is not None:
                left.append((places, undecoded))
        return left

    left = [one for part in threads.run(decode, _split_by_size(targets)) for one in part]
    states = torch.cat([one.status for _, one in left]).tolist() if left else []
    finish_left(left, states, payloads, targets)


def begin_decode_batch(
    batch: Batch,
    infos: Sequence[TensorInfo],
    codecs: Sequence[Codec],
    out: Sequence[torch.Tensor] | None = None,
) -> Decoding:
    """Start decoding a batch whose sizes are on the GPU; return without waiting.

    A batch encoded with an ``expected_ratio`` is completed first, which waits.

    Tensors used before ``Decoding.check`` must be checked afterwards. On a GPU, a non-contiguous ``out`` is
    not written; use ``decode_batch`` for that. On the CPU, decoding completes before the call returns.

    Raises:
        SpecError: the lists differ in length, a codec does not support a dtype, or ``out`` does not match.
        CorruptDataError: on the CPU, the sizes or a payload are malformed.
    """
    _check_to_decode(batch, infos, out)
    if not batch.is_on_gpu or batch.may_overflow:
        return Decoding.finished(decode_batch(batch, infos, codecs, out))
    form = form_to_decode(infos, codecs, out, len(batch.sizes), batch.buffer.device)
    repeated = Repetition.of(batch, form, out)
    decoding = None if repeated is None else repeated.begin()
    return _begin(batch, infos, form, out) if decoding is None else decoding


def _begin(
    batch: Batch, infos: Sequence[TensorInfo], form: ListForm, out: Sequence[torch.Tensor] | None
) -> Decoding:
    if form.new_tensors is not None:
        targets = form.new_tensors.tensors(form.new_tensors.memory())
    else:
        targets = checked_targets(infos, out, [batch.buffer.device] * len(infos))
    decoding = Decoding.begin(batch.buffer, batch.sizes, targets, form.groups)
    undecoded = decoding.undecoded
    form.undecoded = None if undecoded is None else undecoded.without_status()
    return decoding


def _copied(targets: list[torch.Tensor], out: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    pairs = zip(targets, out, strict=True)
    return [x if target is x else copy_if_strided(target, x) for target, x in pairs]


def _split_by_size(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """Split the list into runs of roughly equal bytes, one per thread worth starting.

    On a GPU there is a single run, because another thread would not use the caller's stream.
    """
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return [(0, len(tensors))]
    total = sum(tensor.nbytes for tensor in tensors)
    count = threads.num_parts(len(tensors), total)
    edges, filled = [0], 0
    for k, tensor in enumerate(tensors):
        filled += tensor.nbytes
        if len(edges) < count and filled * count >= total * len(edges):
            edges.append(k + 1)
    return list(pairwise([*edges, len(tensors)]))
