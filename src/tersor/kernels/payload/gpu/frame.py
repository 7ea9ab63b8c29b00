"""Locating the payloads of a frame, and merging frames, in Triton."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl

from tersor.kernels.payload.frame import frame_offsets
from tersor.kernels.runtime.device_cache import on_device
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import padded


@jit_kernel(do_not_specialize=["num_payloads", "frame_nbytes"])
def _offsets_kernel(
    sizes, least, num_payloads, frame_nbytes, offsets, checked, status, LANES: tl.constexpr,
    IS_TABLE: tl.constexpr,
):  # fmt: skip
    """One program computes offsets from sizes; all sizes become 0 if one is impossible or they do not fit.

    If ``IS_TABLE``, ``sizes`` holds the address of the frame, which is added to the offsets, the address of the
    sizes, and the size of the frame.
    """
    base = tl.full((), 0, tl.int64)
    if IS_TABLE:
        base, frame_nbytes = tl.load(sizes), tl.load(sizes + 2)
        sizes = tl.load(sizes + 1).to(tl.pointer_type(tl.int64))
    total = tl.zeros([1], dtype=tl.int64)
    wrong = tl.zeros([1], dtype=tl.int32)
    for start in range(0, num_payloads, LANES):
        k = start + tl.arange(0, LANES)
        size = tl.load(sizes + k, mask=k < num_payloads, other=0)
        smallest = tl.load(least + k, mask=k < num_payloads, other=0)
        possible = (size >= smallest) & (size <= frame_nbytes)
        wrong += tl.sum((~possible).to(tl.int32), axis=0)
        # impossible sizes are left out, so that the sum cannot overflow
        total += tl.sum(tl.where(possible, padded(size), 0), axis=0)
    good = (wrong == 0) & (total <= frame_nbytes)
    end = tl.zeros([1], dtype=tl.int64) + base
    for start in range(0, num_payloads, LANES):
        k = start + tl.arange(0, LANES)
        size = tl.load(sizes + k, mask=k < num_payloads, other=0)
        size = tl.where(good, size, 0)
        taken = padded(size)
        tl.store(offsets + k, tl.cumsum(taken, axis=0) - taken + end, mask=k < num_payloads)
        tl.store(checked + k, size, mask=k < num_payloads)
        tl.store(status + 1 + k, tl.zeros([LANES], dtype=tl.int32), mask=k < num_payloads)
        end += tl.sum(taken, axis=0)
    tl.store(status + tl.arange(0, 1), (~good).to(tl.int32))


@jit_kernel(do_not_specialize=["frame"])
def _copy_kernel(sources, sizes, offsets, frame, LANES: tl.constexpr):
    """Programs (k, p) share the words of payload k, run by run."""
    k = tl.program_id(0)
    source = tl.load(sources + k).to(tl.pointer_type(tl.int64))
    target = (frame + tl.load(offsets + k)).to(tl.pointer_type(tl.int64))
    num_words = padded(tl.load(sizes + k)) // 8
    stride = tl.num_programs(1) * LANES
    for start in range(tl.program_id(1) * LANES, num_words, stride):
        i = start + tl.arange(0, LANES)
        word = tl.load(source + i, mask=i < num_words, other=0)
        tl.store(target + i, word, mask=i < num_words)


def frame_places(
    sizes: torch.Tensor, least_nbytes: Sequence[int], frame_nbytes: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See ``payload.frame.frame_places``."""
    return _places(sizes.contiguous(), tuple(least_nbytes), frame_nbytes, is_table=False)


def places_of_frame(
    table: torch.Tensor, least_nbytes: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Do the same as ``frame_places`` for a frame that only the device knows; offsets are addresses.

    ``table`` is int64 [3]: the address of the frame, the address of its sizes, and its size in bytes.
    """
    return _places(table, tuple(least_nbytes), 0, is_table=True)


def _places(
    source: torch.Tensor, least_nbytes: tuple[int, ...], frame_nbytes: int, is_table: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    num, device = len(least_nbytes), source.device
    offsets, checked = torch.empty(2, num, dtype=torch.int64, device=device).unbind()
    status = torch.empty(1 + num, dtype=torch.int32, device=device)
    with torch.cuda.device_of(source):
        _offsets_kernel[(1,)](
            source, on_device(least_nbytes, device), num, frame_nbytes, offsets, checked, status,
            LANES=256, IS_TABLE=is_table,
        )  # fmt: skip
    return offsets, checked, status


def join_frame(
    buffers: Sequence[torch.Tensor],
    sizes: Sequence[torch.Tensor],
    places: Sequence[int],
    rooms: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """See ``payload.frame.join_frame``."""
    starts = [
        frame_offsets(nbytes)[:-1] + buffer.data_ptr()
        for buffer, nbytes in zip(buffers, sizes, strict=True)
    ]
    order = on_device(_inverse(places), buffers[0].device)
    sources, ordered = torch.cat(starts)[order], torch.cat(list(sizes))[order]
    frame = torch.empty(sum(rooms), dtype=torch.uint8, device=ordered.device)
    offsets, _, _ = frame_places(ordered, [0] * len(rooms), frame.numel())
    programs = max(1, min(64, max(rooms, default=0) >> 16))
    with torch.cuda.device_of(ordered):
        _copy_kernel[(len(rooms), programs)](sources, ordered, offsets, frame, LANES=1024)
    return frame, ordered


def _inverse(places: Sequence[int]) -> tuple[int, ...]:
    """Return the inverse of the permutation ``places``."""
    return tuple(sorted(range(len(places)), key=places.__getitem__))
