"""Copies of the results of a CUDA graph in one launch, because the next replay writes to the same memory.

Memory for payloads fits the worst case, and only the part that the payloads take is copied. On an H200, copying all of
13.6 MB, of which 1.3 MB are used, would take 18 us.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import torch
import triton
import triton.language as tl

from tersor.division import ceil_div
from tersor.kernels.runtime.device_cache import to_device_async
from tersor.kernels.runtime.gpu.launch import jit_kernel
from tersor.kernels.runtime.gpu.tiles import padded

_WORDS_PER_STEP: Final = 1024
_MAX_PROGRAMS: Final = 256
_PIECE_WORDS: Final = 4
"""Copies start at multiples of 16 bytes, the alignment that kernels are compiled for."""


@triton.jit
def _copy_words(source, target, num_words, LANES: tl.constexpr):
    """Copy this program's share of 4-byte words."""
    source, target = source.to(tl.pointer_type(tl.int32)), target.to(tl.pointer_type(tl.int32))
    for start in range(tl.program_id(0) * LANES, num_words, tl.num_programs(0) * LANES):
        i = start + tl.arange(0, LANES)
        tl.store(target + i, tl.load(source + i, mask=i < num_words, other=0), mask=i < num_words)


@jit_kernel(do_not_specialize=["num_facts", "num_sizes", "num_words"])
def _copy_kernel(
    table, num_facts, facts, sizes, num_sizes, source, num_words, target, LANES: tl.constexpr
):
    """Copy all facts, and the part of ``source`` that payloads of ``sizes`` take; all of it if there are no sizes."""
    for k in range(num_facts):
        _copy_words(
            tl.load(table + 3 * k),
            facts + tl.load(table + 3 * k + 1),
            tl.load(table + 3 * k + 2),
            LANES,
        )
    used = num_words.to(tl.int64)
    if num_sizes > 0:
        total = tl.full((), 0, tl.int64)
        for start in range(0, num_sizes, LANES):
            i = start + tl.arange(0, LANES)
            total += tl.sum(padded(tl.load(sizes + i, mask=i < num_sizes, other=0)), axis=0)
        used = tl.minimum(used, total // 4)
    _copy_words(source, target, used, LANES)


class ResultCopies:
    """Copies the same tensors repeatedly, without waiting.

    The copy of the last tensor, which may be large, has its own memory.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], sizes: torch.Tensor | None) -> None:
        """Take tensors whose sizes are multiples of 4 bytes.

        Args:
            tensors: the tensors to copy.
            sizes: int64, bytes of the payloads that the last tensor holds back to back, each padded to 8 bytes;
                memory after them is not copied. None to copy all of it.
        """
        *facts, self._last = tensors
        self._kinds = [(x.dtype, x.shape) for x in facts]
        words = [x.nbytes // 4 for x in facts]
        rooms = [ceil_div(num, _PIECE_WORDS) * _PIECE_WORDS for num in words]
        self._lengths = [
            part for num, room in zip(words, rooms, strict=True) for part in (num, room - num)
        ]
        self._num_words = sum(rooms)
        starts = list(accumulate(rooms, initial=0))
        rows = [
            (x.data_ptr(), start, num) for x, start, num in zip(facts, starts, words, strict=False)
        ]
        self._table = to_device_async(rows or [(0, 0, 0)], torch.int64, self._last.device)
        self._facts = facts
        self._sizes = (self._table, 0) if sizes is None else (sizes, sizes.numel())
        steps = ceil_div(max(self._num_words, self._last.nbytes // 4), _WORDS_PER_STEP)
        self._grid = (max(1, min(steps, _MAX_PROGRAMS)),)

    def copies(self) -> list[torch.Tensor]:
        """Return copies of the current contents of the tensors."""
        source, sizes = self._last, self._sizes
        memory = torch.empty(self._num_words, dtype=torch.int32, device=source.device)
        target = torch.empty_like(source)
        _copy_kernel[self._grid](
            self._table, len(self._facts), memory, *sizes, source,
            source.nbytes // 4, target, LANES=_WORDS_PER_STEP,
        )  # fmt: skip
        pieces = memory.split_with_sizes(self._lengths)[::2]
        pairs = zip(pieces, self._kinds, strict=True)
        copies = [_seen_as(piece, dtype, shape) for piece, (dtype, shape) in pairs]
        return [*copies, target]


def _seen_as(words: torch.Tensor, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    """View 4-byte words as a tensor of another dtype and shape."""
    seen = words if dtype == torch.int32 else words.view(dtype)
    return seen if len(shape) == 1 else seen.view(shape)
