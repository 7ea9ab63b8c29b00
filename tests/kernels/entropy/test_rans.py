"""rANS, decoded lane by lane from the layout's words, and held against the entropy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tersor.errors import CorruptDataError
from tersor.kernels.entropy.rans import rans_decode, rans_encode
from tersor.kernels.entropy.rans.layout import RansLayout, normalized_frequencies, prob_bits
from tests.checks import assert_rejects
from tests.kernels.oracle import integers, padded

LANES = 32


def bell(count: int, deviation: float, alphabet: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    values = torch.randn(count, generator=generator) * deviation + alphabet / 2
    return values.round().clamp(0, alphabet - 1).to(torch.uint8 if alphabet <= 256 else torch.int16)


def entropy_nbytes(symbols: torch.Tensor, alphabet: int) -> float:
    counts = torch.bincount(symbols.long(), minlength=alphabet).tolist()
    total = sum(counts)
    return -sum(n * math.log2(n / total) for n in counts if n) / 8


def decoded_by_hand(body: torch.Tensor, num_symbols: int, alphabet: int) -> list[int]:
    """Decode block by block and symbol by symbol, as the format page describes it."""
    bits = 12 if alphabet <= 256 else 14
    frequencies = integers(body, 0, alphabet, 2)
    assert sum(frequencies) == 2**bits
    slots = [(s, f, k) for s, f in enumerate(frequencies) for k in range(f)]
    # blocks of 4096 below 2**15 symbols
    num_blocks = -(-num_symbols // 4096)
    place = padded(2 * alphabet)
    offsets = integers(body, place, num_blocks + 1, 4)
    place += padded(4 * (num_blocks + 1))
    states = integers(body, place, LANES * num_blocks, 4)
    words = integers(body, place + 4 * LANES * num_blocks, offsets[-1], 2)
    found = []
    for block in range(num_blocks):
        lanes = states[LANES * block : LANES * (block + 1)]
        part = iter(words[offsets[block] : offsets[block + 1]])
        for i in range(min(4096, num_symbols - 4096 * block)):
            state = lanes[i % LANES]
            symbol, frequency, within = slots[state % 2**bits]
            state = frequency * (state >> bits) + within
            lanes[i % LANES] = state if state >= 2**15 else state << 16 | next(part)
            found.append(symbol)
        assert next(part, None) is None
        assert lanes == [2**15] * LANES
    return found


@pytest.mark.parametrize(
    ("count", "deviation", "alphabet"),
    [(1, 1, 9), (31, 1, 9), (33, 2, 9), (4096, 5, 60), (4097, 20, 256), (9000, 300, 3000)],
)
def test_bodies_read_symbol_by_symbol(count, deviation, alphabet):
    symbols = bell(count, deviation, alphabet)
    symbols[0] = alphabet - 1
    body = rans_encode(symbols, alphabet)
    if len(symbols.unique()) > 1:
        assert decoded_by_hand(body, count, alphabet) == symbols.tolist()
    found, nbytes = rans_decode(body, count, alphabet)
    assert torch.equal(found, symbols)
    assert nbytes == body.numel()


@pytest.mark.parametrize(
    ("deviation", "alphabet"), [(0.4, 16), (3, 64), (25, 256), (60, 700), (400, 4096)]
)
def test_size_is_within_one_percent_of_the_entropy(deviation, alphabet):
    symbols = bell(400_000, deviation, alphabet)
    body = rans_encode(symbols, alphabet)
    num_blocks = -(-symbols.numel() // 4096)
    # a state of four bytes for each lane and an offset per block, the table, and padding
    overhead = num_blocks * (4 * LANES + 4) + 2 * alphabet + 32
    assert body.numel() <= 1.01 * entropy_nbytes(symbols, alphabet) + overhead
    assert torch.equal(rans_decode(body, symbols.numel(), alphabet)[0], symbols)


@pytest.mark.parametrize("num_symbols", [1 << 15, 1 << 17, (1 << 18) + 1])
def test_larger_blocks_come_back(num_symbols):
    symbols = bell(num_symbols, 3, 40)
    body = rans_encode(symbols, 40)
    assert torch.equal(rans_decode(body, num_symbols, 40)[0], symbols)


@pytest.mark.parametrize("alphabet", [1, 2, 5, 256, 257, 4096])
def test_frequencies_sum_to_the_scale_and_keep_every_symbol(alphabet):
    generator = torch.Generator().manual_seed(alphabet)
    for power in (1, 4, 20):
        counts = (
            torch.rand(alphabet, generator=generator, dtype=torch.float64) ** power * 1e9
        ).long()
        counts[0] = 1
        found = normalized_frequencies(counts.numpy(), alphabet)
        assert found.sum() == 2 ** prob_bits(alphabet)
        assert ((found > 0) == (counts.numpy() > 0)).all()
    assert not normalized_frequencies(np.zeros(alphabet, dtype=np.int64), alphabet).any()


def test_a_static_table_is_not_stored():
    symbols = bell(5000, 2, 16)
    table = torch.full((16,), 256, dtype=torch.int64)
    body = rans_encode(symbols, 16, table)
    measured = rans_encode(symbols, 16)
    found, nbytes = rans_decode(body, 5000, 16, table)
    assert torch.equal(found, symbols)
    assert nbytes == body.numel()
    # 4 bits per symbol under the even table
    assert abs(body.numel() - 5000 / 2 - 2 * (4 * LANES + 8)) < 100
    assert measured.numel() < body.numel()


@pytest.mark.parametrize("count", [0, 1, 100_000])
def test_a_single_symbol_needs_no_words(count):
    symbols = torch.full((count,), 2, dtype=torch.uint8)
    body = rans_encode(symbols, 3)
    assert body.numel() <= 8 + 4 * (count // 4096 + 2) + 8
    assert torch.equal(rans_decode(body, count, 3)[0], symbols)


def test_changed_words_are_noticed():
    """Any change to a state or a word leaves some lane in a wrong final state."""
    symbols = bell(300, 3, 20)
    body = rans_encode(symbols, 20)
    layout = RansLayout(300, 20, static=False)
    used = layout.words_start(single=False) + 2 * integers(body, layout.offsets_start, 2, 4)[1]
    for place in range(layout.states_start, used):
        changed = body.clone()
        changed[place] ^= 1 << place % 8
        assert_rejects(lambda c=changed: rans_decode(c, 300, 20), CorruptDataError)


def test_frequencies_that_do_not_add_up_are_refused():
    symbols = bell(300, 3, 20)
    body = rans_encode(symbols, 20)
    for place in (0, 1, 20, 39):
        changed = body.clone()
        changed[place] += 1
        assert_rejects(lambda c=changed: rans_decode(c, 300, 20), CorruptDataError)
