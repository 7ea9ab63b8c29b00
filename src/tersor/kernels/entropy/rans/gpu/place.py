"""Copying coded rANS blocks into the bodies of their streams, in Triton."""

from __future__ import annotations

from typing import Final

import triton
import triton.language as tl

from tersor.kernels.entropy.rans.gpu.block import LANES

PAIRS_PER_COPY: Final = 512
"""Pairs of words per step of a copy."""


@triton.jit
def _copy_words(source, target, count, PAIRS_PER_COPY: tl.constexpr):
    """Copy ``count`` words; each aligned pair in the target is written by one store.

    Aligned loads and all stores of pairs are marked evict-first, which leaves the cache to the words of
    other blocks: 28 us instead of 31 for 45 MB.
    """
    lead = (target.to(tl.int64) >> 1).to(tl.int32) & 1
    num_pairs = (count - lead) >> 1
    k = tl.arange(0, PAIRS_PER_COPY)
    pairs = (target + lead).to(tl.pointer_type(tl.int32))
    source_pairs = (source + lead).to(tl.pointer_type(tl.int32))
    if source_pairs.to(tl.int64) & 3 == 0:
        for first in range(0, num_pairs, PAIRS_PER_COPY):
            inside = first + k < num_pairs
            pair = tl.load(
                source_pairs + first + k, mask=inside, other=0, eviction_policy="evict_first"
            )
            tl.store(pairs + first + k, pair, mask=inside, eviction_policy="evict_first")
    else:
        for first in range(0, num_pairs, PAIRS_PER_COPY):
            inside = first + k < num_pairs
            words = source + lead + 2 * (first + k)
            low = tl.load(words, mask=inside, other=0).to(tl.int32) & 0xFFFF
            high = tl.load(words + 1, mask=inside, other=0).to(tl.int32) << 16
            tl.store(pairs + first + k, low | high, mask=inside, eviction_policy="evict_first")
    end = tl.arange(0, 2)
    at = tl.where(end == 0, 0, count - 1)
    is_single = tl.where(end == 0, lead, (count - lead) & 1) & (count > 0).to(tl.int32)
    word = tl.load(source + at, mask=is_single == 1, other=0)
    tl.store(target + at, word, mask=is_single == 1)


@triton.jit
def frame_block(
    body, b, num_blocks, start, end, frequencies, num_frequencies, offsets_start, words_start,
    LANES: tl.constexpr,
):  # fmt: skip
    """Write the offset of a block; the first and the last block also write the rest of the body.

    The first writes the frequencies, ``LANES`` at a time, and the last the final offset and the padding.
    States and words are left to ``place_block``, which describes the arguments.
    """
    k = tl.arange(0, LANES)
    offsets = (body + offsets_start).to(tl.pointer_type(tl.int32))
    target = (body + words_start).to(tl.pointer_type(tl.int16))
    tl.store(offsets + b, start.to(tl.int32))
    if b == 0:
        for first in range(0, num_frequencies, LANES):
            inside = first + k < num_frequencies
            frequency = tl.load(frequencies + first + k, mask=inside, other=0)
            tl.store(body.to(tl.pointer_type(tl.int16)) + first + k, frequency, mask=inside)
    if b == num_blocks - 1:
        tl.store(offsets + num_blocks, end.to(tl.int32))
        zeros = tl.zeros([LANES], dtype=tl.int16)
        tl.store(target + end + k, zeros, mask=k < (4 - end % 4) % 4)
        past = (num_blocks + 1) % 2
        tl.store(offsets + num_blocks + 1 + k, zeros.to(tl.int32), mask=k < past)


@triton.jit
def place_block(
    body, b, num_blocks, start, end, source, states, frequencies, num_frequencies,
    offsets_start, states_start, words_start, PAIRS_PER_COPY: tl.constexpr,
):  # fmt: skip
    """Copy one block into the body; the first and the last block also write its other parts.

    Args:
        body: uint8, at an address that is a multiple of 8.
        b: index of the block.
        num_blocks: number of blocks of the stream.
        start: number of words in earlier blocks.
        end: number of words up to the end of this block.
        source: words of this block.
        states: states of this block; ignored if ``states_start`` equals ``words_start``.
        frequencies: int16.
        num_frequencies: how many frequencies to write.
        offsets_start: first byte of the offsets in the body.
        states_start: first byte of the states.
        words_start: first byte of the words.
        PAIRS_PER_COPY: pairs of words copied at a time.
    """
    if words_start > states_start:
        lane = tl.arange(0, LANES)
        x = tl.load(states + lane)
        tl.store((body + states_start).to(tl.pointer_type(tl.int32)) + b * LANES + lane, x)
        target = (body + words_start).to(tl.pointer_type(tl.int16))
        _copy_words(source, target + start, (end - start).to(tl.int32), PAIRS_PER_COPY)
    frame_block(
        body, b, num_blocks, start, end, frequencies, num_frequencies, offsets_start, words_start,
        PAIRS_PER_COPY,
    )  # fmt: skip
