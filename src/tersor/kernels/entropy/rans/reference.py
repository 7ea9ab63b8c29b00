"""rANS in plain torch. Layout: ``rans/layout.py``.

All blocks advance in lockstep. Encoding runs backwards through the steps of a block, so that decoding
consumes the words forwards, in the order of (step, lane).
"""

from __future__ import annotations

import numpy as np
import torch

from tersor.errors import CorruptDataError
from tersor.kernels.entropy.rans.layout import (
    LANES,
    STATE_LOW,
    RansLayout,
    normalized_frequencies,
    prob_bits,
)


def rans_encode(
    symbols: torch.Tensor, alphabet: int, frequencies: torch.Tensor | None = None
) -> torch.Tensor:
    """Encode symbols below ``alphabet`` into a uint8 body whose size is a multiple of 8 bytes.

    Args:
        symbols: uint8 or int16, flat.
        alphabet: number of symbols.
        frequencies: int64 table known to both sides, or None to measure one and store it. Every
            symbol that occurs must have a frequency of at least 1.
    """
    layout = RansLayout(symbols.numel(), alphabet, frequencies is not None)
    index = symbols.to(torch.int64).cpu()
    if frequencies is None:
        counts = torch.bincount(index, minlength=alphabet).numpy()
        table = torch.from_numpy(normalized_frequencies(counts, alphabet))
    else:
        table = frequencies.cpu()
    single = int((table > 0).sum()) <= 1
    states, words, block_words = _encode_blocks(index, table, layout, single)
    offsets = torch.cat([block_words.new_zeros(1), block_words.cumsum(0)])
    body = np.zeros(layout.body_nbytes(words.numel(), single), dtype=np.uint8)
    if frequencies is None:
        body[: 2 * alphabet] = table.numpy().astype(np.uint16).view(np.uint8)
    offsets_end = layout.offsets_start + 4 * offsets.numel()
    body[layout.offsets_start : offsets_end] = offsets.numpy().astype(np.uint32).view(np.uint8)
    if not single:
        words_start = layout.words_start(single)
        body[layout.states_start : words_start] = states.numpy().astype(np.uint32).view(np.uint8)
        words_end = words_start + 2 * words.numel()
        body[words_start:words_end] = words.numpy().astype(np.uint16).view(np.uint8)
    return torch.from_numpy(body).to(symbols.device)


def _encode_blocks(
    index: torch.Tensor, table: torch.Tensor, layout: RansLayout, single: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return final states, all words in decoding order, and the number of words per block."""
    if single:
        none = torch.zeros(0, dtype=torch.int64, device="cpu")
        return none, none, torch.zeros(layout.num_blocks, dtype=torch.int64, device="cpu")
    bits = prob_bits(layout.alphabet)
    cumulative = table.cumsum(0) - table
    steps = layout.block // LANES
    padded_index = torch.full(
        (layout.num_blocks * layout.block,), -1, dtype=torch.int64, device="cpu"
    )
    padded_index[: index.numel()] = index
    grid = padded_index.view(layout.num_blocks, steps, LANES)
    state = torch.full((layout.num_blocks, LANES), STATE_LOW, dtype=torch.int64, device="cpu")
    emitted = torch.zeros_like(grid)
    emits = torch.zeros(grid.shape, dtype=torch.bool, device="cpu")
    for step in range(steps - 1, -1, -1):
        symbol = grid[:, step]
        live = symbol >= 0
        frequency = torch.where(live, table[symbol], 1)
        emits[:, step] = live & (state >= frequency << (31 - bits))
        emitted[:, step] = state & 0xFFFF
        state = torch.where(emits[:, step], state >> 16, state)
        coded = (state // frequency << bits) + state % frequency + cumulative[symbol]
        state = torch.where(live, coded, state)
    return state.view(-1), emitted[emits], emits.sum((1, 2))


def rans_decode(
    body: torch.Tensor, num_symbols: int, alphabet: int, frequencies: torch.Tensor | None = None
) -> tuple[torch.Tensor, int]:
    """Return the symbols (uint8, or int16 above 256) and the number of body bytes read.

    Raises:
        CorruptDataError: the body is not one that ``rans_encode`` could have written.
    """
    layout = RansLayout(num_symbols, alphabet, frequencies is not None)
    data = body.cpu().numpy()
    given = None if frequencies is None else frequencies.cpu().numpy()
    table, offsets, nbytes = layout.read(data, given)
    dtype = torch.uint8 if alphabet <= 256 else torch.int16
    if int((table > 0).sum()) <= 1:
        symbols = torch.full((num_symbols,), int(table.argmax()), dtype=dtype, device="cpu")
        return symbols.to(body.device), nbytes
    words_start = layout.words_start(single=False)
    states = data[layout.states_start : words_start].view(np.uint32).astype(np.int64)
    words = data[words_start:nbytes].view(np.uint16).astype(np.int64)
    symbols = _decode_blocks(
        torch.from_numpy(states).view(-1, LANES),
        torch.from_numpy(np.append(words, 0)),
        torch.from_numpy(offsets),
        torch.from_numpy(table),
        layout,
    )
    return symbols[:num_symbols].to(dtype).to(body.device), nbytes


def _decode_blocks(
    state: torch.Tensor,
    words: torch.Tensor,
    offsets: torch.Tensor,
    table: torch.Tensor,
    layout: RansLayout,
) -> torch.Tensor:
    bits = prob_bits(layout.alphabet)
    symbol_of = torch.repeat_interleave(torch.arange(layout.alphabet, device="cpu"), table)
    within = torch.arange(1 << bits, device="cpu") - (table.cumsum(0) - table)[symbol_of]
    steps = layout.block // LANES
    out = torch.zeros(layout.num_blocks, steps, LANES, dtype=torch.int64, device="cpu")
    live = (torch.arange(out.numel(), device="cpu") < layout.num_symbols).view(out.shape)
    place = offsets[:-1].clone()
    for step in range(steps):
        slot = state & ((1 << bits) - 1)
        out[:, step] = symbol_of[slot]
        stepped = table[symbol_of[slot]] * (state >> bits) + within[slot]
        state = torch.where(live[:, step], stepped, state)
        needs = live[:, step] & (state < STATE_LOW)
        order = needs.to(torch.int64).cumsum(1)
        source = (place[:, None] + order - 1).clamp(0, words.numel() - 1)
        state = torch.where(needs, (state << 16 | words[source]) & 0xFFFFFFFF, state)
        place = place + order[:, -1]
        if bool((place > offsets[1:]).any()):
            raise CorruptDataError("a rANS block ends early")
    if not (torch.equal(place, offsets[1:]) and bool((state == STATE_LOW).all())):
        raise CorruptDataError("a rANS block does not end where it should")
    return out.view(-1)
