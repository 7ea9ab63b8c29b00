"""Limits of the workspace: the memory that encoding and decoding take beyond tensors and payloads.

The figures bound what kernels of all forms take, second passes included; tests compare them with the allocator of a
GPU. Chunk sizes depend only on tensor, codec, dtype and limit, so all devices write the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from tersor.chunks import MAX_CHUNK_VALUES, ChunkPlan
from tersor.codecs.arguments import checked_out, copy_if_strided
from tersor.codecs.codec import Codec
from tersor.codecs.packed import Packed
from tersor.errors import SpecError
from tersor.kernels.runtime.sparing import sparing_memory
from tersor.kernels.runtime.tensor_guard import are_plain
from tersor.types import TensorInfo

_CALL_NBYTES: Final = 8 * 2**20
"""Workspace of any call: tables, and residuals of the programs that run concurrently."""
_TENSOR_NBYTES: Final = 2**18
"""Workspace of each tensor of a list: tables of its entropy coder."""
_LEAST_VALUES: Final = 2**16
"""Smallest chunk of a tensor; smaller chunks would hardly compress."""


def check_workspace(max_workspace_nbytes: int) -> None:
    """Raise ``SpecError`` unless ``max_workspace_nbytes`` is a number of bytes."""
    if type(max_workspace_nbytes) is not int or max_workspace_nbytes < 0:
        raise SpecError(
            "max_workspace_nbytes must be a whole number of bytes, or None for no limit, not "
            f"{max_workspace_nbytes!r}"
        )


def pack_within(codec: Codec, x: torch.Tensor, max_workspace_nbytes: int) -> Packed:
    """Encode a tensor as ``Codec.pack`` does, in chunks if its workspace would exceed a limit.

    Raises:
        SpecError: the limit is less than the smallest chunk takes; the message states the minimum.
    """
    check_workspace(max_workspace_nbytes)
    numel = TensorInfo.of(x).numel
    # a tensor that is not contiguous is copied first
    fixed_nbytes = _CALL_NBYTES + _TENSOR_NBYTES + (0 if are_plain([x]) else x.nbytes)
    most = (max_workspace_nbytes - fixed_nbytes) // codec.workspace_nbytes(1, x.dtype)
    if most < min(numel, _LEAST_VALUES):
        least = fixed_nbytes + codec.workspace_nbytes(min(numel, _LEAST_VALUES), x.dtype)
        raise _too_little(max_workspace_nbytes, least, f"codec {codec.codec_id!r} and this tensor")
    chunk_values = MAX_CHUNK_VALUES if most >= numel else min(most, MAX_CHUNK_VALUES)
    with sparing_memory():
        return codec.pack(x, chunk_values=chunk_values)


def unpack_within(
    packed: Packed, out: torch.Tensor | None, max_workspace_nbytes: int
) -> torch.Tensor:
    """Decode as ``Codec.unpack`` does, chunk by chunk if the workspace of all chunks would exceed a limit.

    Raises:
        SpecError: the limit is less than the largest chunk takes; the message states the minimum.
    """
    check_workspace(max_workspace_nbytes)
    codec, info, payloads = packed.codec, packed.info, packed.payloads
    plan = ChunkPlan(info.shape, packed.chunk_values)
    # an output that is not contiguous is decoded to a copy, and unaligned payloads are copied
    copied_nbytes = 0 if out is None or out.is_contiguous() else info.nbytes
    copied_nbytes += sum(payload.numel() for payload in payloads if payload.data_ptr() % 8)
    fixed_nbytes = _CALL_NBYTES + copied_nbytes
    whole_nbytes = codec.workspace_nbytes(info.numel, info.dtype) + len(plan) * _TENSOR_NBYTES
    with sparing_memory():
        if len(plan) != len(payloads) or fixed_nbytes + whole_nbytes <= max_workspace_nbytes:
            return codec.unpack(packed, out)
        least = fixed_nbytes + codec.workspace_nbytes(plan.chunk_size, info.dtype) + _TENSOR_NBYTES
        if least > max_workspace_nbytes:
            raise _too_little(max_workspace_nbytes, least, "the largest chunk of this tensor")
        target = checked_out(out, info, packed.device)
        for chunk, payload in zip(plan, payloads, strict=True):
            part = target.view(-1)[chunk.start : chunk.stop].view(chunk.shape)
            one = TensorInfo(chunk.shape, info.dtype)
            codec.unpack(Packed(one, codec, (payload,), packed.chunk_values), part)
        return target if out is None else copy_if_strided(target, out)


def list_pieces(
    codecs: Sequence[Codec], tensors: Sequence[torch.Tensor], max_workspace_nbytes: int
) -> list[range]:
    """Split a list into ranges of indices that stay within the limit if they are encoded one after the other.

    Raises:
        SpecError: the limit is less than the largest tensor takes; the message states the minimum.
    """
    check_workspace(max_workspace_nbytes)
    if not tensors:
        return [range(0)]
    needed = [_listed_nbytes(codec, x) for codec, x in zip(codecs, tensors, strict=True)]
    least = _CALL_NBYTES + max(needed)
    if least > max_workspace_nbytes:
        raise _too_little(
            max_workspace_nbytes, least, "the largest of these tensors, which is one payload"
        )
    pieces, start, taken_nbytes = [], 0, _CALL_NBYTES
    for k, nbytes in enumerate(needed):
        if taken_nbytes + nbytes > max_workspace_nbytes:
            pieces.append(range(start, k))
            start, taken_nbytes = k, _CALL_NBYTES
        taken_nbytes += nbytes
    return [*pieces, range(start, len(needed))]


def _listed_nbytes(codec: Codec, x: torch.Tensor) -> int:
    # the payload is written to memory for its largest possible size, then the used part is copied
    nbytes = codec.workspace_nbytes(x.numel(), x.dtype) + x.nbytes + _TENSOR_NBYTES
    return nbytes if are_plain([x]) else nbytes + x.nbytes


def _too_little(given_nbytes: int, least_nbytes: int, what: str) -> SpecError:
    return SpecError(
        f"max_workspace_nbytes must be at least {least_nbytes:,} for {what}, not {given_nbytes:,}"
    )
