"""Huffman codes, checked against the textbook's tree and read bit by bit."""

from __future__ import annotations

import heapq
from fractions import Fraction

import numpy as np
import pytest
import torch

from tersor.errors import CorruptDataError
from tersor.kernels.entropy.huffman import huffman_decode, huffman_encode
from tersor.kernels.entropy.huffman.layout import canonical_codes, code_lengths, max_length
from tests.checks import assert_rejects
from tests.kernels.oracle import bits_of, integers, padded

CHUNK = 32768


def symbols_of(counts: list[int]) -> torch.Tensor:
    """Each symbol as often as its count says, in an order that mixes them."""
    plain = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    order = torch.randperm(plain.numel(), generator=torch.Generator().manual_seed(9))
    return plain[order].to(torch.uint8 if len(counts) <= 256 else torch.int16)


def textbook_nbits(counts: list[int]) -> int:
    """Merge the two lightest trees until one is left; return the total length of all codes."""
    heap = [count for count in counts if count]
    heapq.heapify(heap)
    total = 0
    while len(heap) > 1:
        merged = heapq.heappop(heap) + heapq.heappop(heap)
        total += merged
        heapq.heappush(heap, merged)
    return total


def stored_lengths(body: torch.Tensor, alphabet: int) -> list[int]:
    nibbles = [
        byte >> shift & 15 for byte in body[: (alphabet + 1) // 2].tolist() for shift in (0, 4)
    ]
    return nibbles[:alphabet]


def decoded_by_hand(body: torch.Tensor, num_symbols: int, alphabet: int) -> list[int]:
    """Read a body as the format page describes it, one bit at a time."""
    lengths = stored_lengths(body, alphabet)
    book = {code: symbol for symbol, code in canonical_by_hand(lengths).items()}
    num_chunks = -(-num_symbols // CHUNK)
    sizes_start = padded((alphabet + 1) // 2)
    start = sizes_start + padded(8 * num_chunks)
    sizes = integers(body, sizes_start, 4 * num_chunks, 2)
    found: list[int] = []
    for chunk in range(num_chunks):
        count = min(CHUNK, num_symbols - chunk * CHUNK)
        quarter = -(-count // 4)
        for stream in range(4):
            nbytes = sizes[4 * chunk + stream]
            bits = bits_of(body[start : start + nbytes])
            start += nbytes
            wanted = min(quarter, max(0, count - stream * quarter))
            found += _stream(bits, wanted, book)
    assert padded(start) + 16 == body.numel()
    return found


def _stream(bits: list[int], wanted: int, book: dict[str, int]) -> list[int]:
    found, place = [], 0
    for _ in range(wanted):
        code = ""
        while code not in book:
            code += str(bits[place])
            place += 1
        found.append(book[code])
    assert len(bits) - place < 8
    assert not any(bits[place:])
    return found


def canonical_by_hand(lengths: list[int]) -> dict[int, str]:
    """Number the codes upwards, shorter ones first, then by symbol."""
    codes, value, previous = {}, 0, 0
    for length, symbol in sorted((n, s) for s, n in enumerate(lengths) if n):
        value <<= length - previous
        codes[symbol] = f"{value:0{length}b}"
        value, previous = value + 1, length
    return codes


COUNTS = {
    "even": [100] * 16,
    "odd alphabet": [50, 20, 20, 5, 5],
    "two symbols": [999, 1],
    "gaps": [0, 5, 0, 0, 7, 1, 0],
    "geometric": [2**k for k in range(11, -1, -1)],
    "bell": [int(4000 * 2.0 ** (-(((k - 60) / 20) ** 2))) for k in range(120)],
    "byte alphabet": [1 + k % 7 for k in range(256)],
    "wide alphabet": [1 + (k * k) % 23 for k in range(700)],
    "several chunks": [30_000, 9000, 500, 40, 3],
}


@pytest.mark.parametrize("name", COUNTS)
def test_bodies_read_bit_by_bit(name):
    counts = COUNTS[name]
    symbols = symbols_of(counts)
    body = huffman_encode(symbols, len(counts))
    assert decoded_by_hand(body, symbols.numel(), len(counts)) == symbols.tolist()
    found, nbytes = huffman_decode(body, symbols.numel(), len(counts))
    assert torch.equal(found, symbols)
    assert nbytes == body.numel()


@pytest.mark.parametrize("name", COUNTS)
def test_code_is_optimal_where_the_limit_does_not_bind(name):
    counts = COUNTS[name]
    lengths = code_lengths(np.array(counts), 30)
    assert sum(
        n * int(length) for n, length in zip(counts, lengths, strict=True)
    ) == textbook_nbits(counts)
    stored = stored_lengths(huffman_encode(symbols_of(counts), len(counts)), len(counts))
    if max(lengths) <= max_length(len(counts)):
        assert stored == lengths.tolist()


def fibonacci(count: int) -> list[int]:
    """Counts whose Huffman tree is as deep as a tree can be."""
    found = [1, 1]
    while len(found) < count:
        found.append(found[-1] + found[-2])
    return found


@pytest.mark.parametrize(
    ("counts", "limit"),
    [
        (fibonacci(20), 11),
        (fibonacci(22) + [1] * 234, 11),
        (fibonacci(22) + [1] * 1000, 14),
        ([1] * 2048, 11),
        ([1] * 2047 + [10**6], 11),
        ([1] * 4095 + [10**9], 14),
        ([1, 10**12, 1, 10**12, 1], 3),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else str(len(value)),
)
def test_limited_codes_are_complete_and_short(counts, limit):
    lengths = code_lengths(np.array(counts), limit)
    assert all(0 < length <= limit for length in lengths.tolist())
    assert sum(Fraction(1, 2**length) for length in lengths.tolist()) == 1
    total = sum(n * int(length) for n, length in zip(counts, lengths, strict=True))
    # never worse than the code that gives every symbol the same length
    assert textbook_nbits(counts) <= total <= sum(counts) * (len(counts) - 1).bit_length()


def test_the_kernel_keeps_the_limit():
    for counts, limit in ((fibonacci(20), 11), (fibonacci(24) + [1] * 300, 14)):
        symbols = symbols_of(counts)
        body = huffman_encode(symbols, len(counts))
        lengths = stored_lengths(body, len(counts))
        assert max(lengths) == limit
        assert sum(Fraction(1, 2**length) for length in lengths) == 1
        assert torch.equal(huffman_decode(body, symbols.numel(), len(counts))[0], symbols)


def test_codes_are_canonical():
    for counts in COUNTS.values():
        lengths = code_lengths(np.array(counts), max_length(len(counts)))
        by_hand = canonical_by_hand(lengths.tolist())
        for symbol, code in enumerate(canonical_codes(lengths).tolist()):
            expected = by_hand.get(symbol, "")
            # the first bit of a code is stored lowest
            assert code == int("0" + expected[::-1], 2)


@pytest.mark.parametrize("count", [0, 1, 4, 100_000])
def test_a_single_symbol_needs_no_bits(count):
    symbols = torch.full((count,), 3, dtype=torch.uint8)
    body = huffman_encode(symbols, 5)
    assert body.numel() <= 8 + 8 * -(-count // CHUNK) + 16
    assert torch.equal(huffman_decode(body, count, 5)[0], symbols)


def test_streams_end_exactly():
    counts = COUNTS["bell"]
    symbols = symbols_of(counts)
    body = huffman_encode(symbols, len(counts))
    for num_symbols in (symbols.numel() - 8, symbols.numel() + 8):
        assert_rejects(lambda n=num_symbols: huffman_decode(body, n, len(counts)), CorruptDataError)


def test_incomplete_codes_are_refused():
    symbols = symbols_of([4, 3, 2, 1])
    body = huffman_encode(symbols, 4)
    for nibbles in ([0x11, 0x01], [0x22, 0x02], [0, 0], [0x01, 0], [0xFF, 0xFF], [0x21, 0x21]):
        changed = body.clone()
        changed[:2] = torch.tensor(nibbles, dtype=torch.uint8)
        assert_rejects(lambda c=changed: huffman_decode(c, symbols.numel(), 4), CorruptDataError)


def test_empty_streams_hold_no_symbols():
    """A complete code of two symbols whose streams are all empty codes nothing."""
    body = torch.zeros(8 + 8 + 16, dtype=torch.uint8)
    body[0] = 0x11
    assert_rejects(lambda: huffman_decode(body, 100, 2), CorruptDataError)
