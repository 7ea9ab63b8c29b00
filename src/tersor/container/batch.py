"""Many tensors in one buffer: what a collective sends to one peer.

Every tensor keeps its own codec, bound and payload; the offset table says where each begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from tersor.codecs.codec import (
    Codec,
    check_num_values,
    check_payload_size,
    checked_out,
    checked_payload,
    copy_if_strided,
    materialised,
)
from tersor.codecs.lists import decode_each, encode_each, runs_on_gpu
from tersor.codecs.registry import check_is_codec
from tersor.container.device_batch import Decoding, begin_decode, encode_frame
from tersor.container.frame import frame_offsets, pack_frame, split_frame
from tersor.errors import CorruptDataError, SpecError
from tersor.kernels.runtime import threads
from tersor.kernels.runtime.cpu_runs import cut
from tersor.types import TensorInfo, check_tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """Payloads of several tensors in one frame.

    Attributes:
        buffer: uint8, laid out as ``container.frame`` says. Encoded on a GPU it has room for the
            largest possible payloads, and what follows the last one is not written.
        sizes: int64 [len], bytes of each payload; on the device of ``buffer``, because the host
            does not wait for them.
    """

    buffer: torch.Tensor
    sizes: torch.Tensor

    @property
    def offsets(self) -> torch.Tensor:
        """Where each payload starts in ``buffer``, then its end: int64 [len + 1]."""
        return frame_offsets(self.sizes)

    def trimmed(self) -> Batch:
        """Return the batch without the room behind its payloads, and the sizes on the CPU; waits.

        What is left of the buffer is a view: it keeps the memory of the whole.
        """
        sizes = self.sizes.cpu()
        return Batch(self.buffer[: int(frame_offsets(sizes)[-1])], sizes)


def encode_payloads(tensors: Sequence[torch.Tensor], codecs: Sequence[Codec]) -> list[torch.Tensor]:
    """Encode each tensor with its own codec, in parallel; return one payload per tensor.

    Raises:
        SpecError: the lists differ in length or a tensor cannot be encoded.
    """
    _check_can_encode(tensors, codecs)
    if runs_on_gpu(tensors):
        return encode_each([materialised(x) for x in tensors], codecs)

    def encode(start: int, stop: int) -> dict[int, torch.Tensor]:
        payloads: dict[int, torch.Tensor] = {}
        for codec, places in _runs(codecs, tensors, start, stop):
            encoded = codec.encode_tensors([materialised(tensors[k]) for k in places])
            payloads.update(zip(places, encoded, strict=True))
        return payloads

    parts = threads.run(encode, _split_by_size(tensors))
    return [part[k] for part in parts for k in sorted(part)]


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


def _check_codecs(codecs: Sequence[Codec]) -> None:
    """Raise ``SpecError`` unless this is a list of codecs."""
    if isinstance(codecs, Codec):
        raise SpecError("give one codec per tensor, as in [codec] * len(tensors)")
    for codec in {id(codec): codec for codec in codecs}.values():
        check_is_codec(codec)


def _check_supported(codecs: Sequence[Codec], dtypes: Sequence[torch.dtype]) -> None:
    """Raise ``SpecError`` for a codec with a dtype that it does not take; equal pairs count once."""
    pairs = zip(codecs, dtypes, strict=True)
    for codec, dtype in {(id(codec), dtype): (codec, dtype) for codec, dtype in pairs}.values():
        codec.check_supported(dtype)


def decode_payloads(
    payloads: Sequence[torch.Tensor],
    infos: Sequence[TensorInfo],
    codecs: Sequence[Codec],
    out: Sequence[torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """Decode payloads of known shape and dtype, in parallel, into ``out`` or into new tensors.

    Raises:
        SpecError: the lists differ in length, a codec does not take a dtype, or ``out`` does not fit.
        CorruptDataError: a payload is malformed.
    """
    _check_codecs(codecs)
    if not len(payloads) == len(infos) == len(codecs):
        raise SpecError(f"{len(payloads)} payloads need as many shapes and codecs")
    _check_supported(codecs, [info.dtype for info in infos])
    for payload, info in zip(payloads, infos, strict=True):
        check_payload_size(payload, info.numel)
    targets = _targets(infos, out, [payload.device for payload in payloads])
    if runs_on_gpu(targets):
        decode_each([checked_payload(payload) for payload in payloads], targets, codecs)
    else:
        _decode_in_threads(payloads, targets, codecs)
    return targets if out is None else _copied(targets, out)


def _decode_in_threads(
    payloads: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], codecs: Sequence[Codec]
) -> None:
    def decode(start: int, stop: int) -> None:
        for codec, places in _runs(codecs, targets, start, stop):
            codec.decode_payloads([payloads[k] for k in places], [targets[k] for k in places])

    threads.run(decode, _split_by_size(targets))


def encode_batch(tensors: Sequence[torch.Tensor], codecs: Sequence[Codec]) -> Batch:
    """Encode each tensor with its own codec into one buffer; tensors are encoded in parallel.

    On a GPU the host does not wait, except for codecs without a list engine (``huffman``, those
    with prediction, ``lz4``, ``zstd``) whose sizes vary. The call can be captured in a CUDA graph
    after it was made once with the same tensors. A tensor for which an engine does not know the
    smallest form is stored exactly; ``encode_payloads`` waits and finds it.

    Raises:
        SpecError: the lists differ in length or a tensor cannot be encoded.

    Example:
        >>> from tersor import Bound, create
        >>> tensors = [torch.randn(4, 8), torch.randn(5)]
        >>> codecs = [create("rows", bound=Bound.relative(0.03)), create("half")]
        >>> batch = encode_batch(tensors, codecs)
        >>> infos = [TensorInfo.of(x) for x in tensors]
        >>> [tuple(y.shape) for y in decode_batch(batch, infos, codecs)]
        [(4, 8), (5,)]
    """
    _check_can_encode(tensors, codecs)
    if runs_on_gpu(tensors):
        return Batch(*encode_frame([materialised(x) for x in tensors], codecs))
    payloads = encode_payloads(tensors, codecs)
    sizes = torch.tensor([payload.numel() for payload in payloads], dtype=torch.int64, device="cpu")
    return Batch(pack_frame(payloads), sizes)


def decode_batch(
    batch: Batch,
    infos: Sequence[TensorInfo],
    codecs: Sequence[Codec],
    out: Sequence[torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """Decode all tensors of a batch, in parallel, into ``out`` or into new tensors.

    Raises:
        SpecError: the lists differ in length, a codec does not take a dtype, or ``out`` does not fit.
        CorruptDataError: the sizes or a payload are malformed.
    """
    if runs_on_gpu([batch.buffer]) and batch.sizes.device == batch.buffer.device:
        decoded = begin_decode_batch(batch, infos, codecs, out).check()
        return decoded if out is None else _copied(decoded, out)
    payloads = split_frame(batch.buffer, batch.sizes.tolist())
    if len(payloads) != len(infos):
        raise CorruptDataError(f"{len(infos)} payloads expected, {len(payloads)} present")
    return decode_payloads(payloads, infos, codecs, out)


def begin_decode_batch(
    batch: Batch,
    infos: Sequence[TensorInfo],
    codecs: Sequence[Codec],
    out: Sequence[torch.Tensor] | None = None,
) -> Decoding:
    """Start to decode a batch whose sizes are on the GPU; return without waiting.

    Whoever uses the tensors before ``Decoding.check`` must check afterwards. On a GPU an ``out`` that
    is not contiguous is not written; ``decode_batch`` does that. On the CPU all is done at once.

    Raises:
        SpecError: the lists differ in length, a codec does not take a dtype, or ``out`` does not fit.
        CorruptDataError: on the CPU, the sizes or a payload are malformed.
    """
    if not runs_on_gpu([batch.buffer]):
        return Decoding.finished(decode_batch(batch, infos, codecs, out))
    _check_codecs(codecs)
    if not len(batch.sizes) == len(infos) == len(codecs):
        raise SpecError(f"{len(batch.sizes)} payloads need as many shapes and codecs")
    _check_supported(codecs, [info.dtype for info in infos])
    targets = _targets(infos, out, [batch.buffer.device] * len(infos))
    return begin_decode(batch.buffer, batch.sizes, targets, codecs)


def _targets(
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


def _copied(targets: list[torch.Tensor], out: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [copy_if_strided(target, x) for target, x in zip(targets, out, strict=True)]


def _runs(
    codecs: Sequence[Codec], tensors: Sequence[torch.Tensor], start: int, stop: int
) -> Iterator[tuple[Codec, list[int]]]:
    """Yield the places from ``start`` to ``stop`` by equal codec, device and dtype.

    On the CPU a run ends after some MiB: what Python does for it then stands beside the kernels of
    another thread.
    """
    groups: dict[tuple[Codec, torch.device, torch.dtype], list[int]] = {}
    for k in range(start, stop):
        groups.setdefault((codecs[k], tensors[k].device, tensors[k].dtype), []).append(k)
    for (codec, device, _), places in groups.items():
        for run in cut(tensors, places) if device.type == "cpu" else (places,):
            yield codec, run


def _split_by_size(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """Cut the list into runs of about equal bytes, one per thread worth starting.

    On another device than the CPU there is one: a thread of its own would leave the caller's stream.
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
