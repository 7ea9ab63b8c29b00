"""Fixed-length packing, checked bit by bit against the layout's words."""

from __future__ import annotations

import pytest
import torch

from tersor.errors import CorruptDataError
from tersor.kernels.pack.blocks import pack, unpack
from tersor.kernels.pack.blocks.layout import BitpackLayout
from tests.checks import assert_rejects
from tests.kernels.oracle import bits_of, integers, number, padded

SIZES = (0, 1, 31, 32, 33, 64, 1023, 1024, 1025, 3000)


def codes_of(size: int, nbits: int) -> torch.Tensor:
    """Codes of up to ``nbits`` bits; blocks differ in width, and some are zero."""
    generator = torch.Generator().manual_seed(size + nbits)
    codes = torch.randint(-(2**nbits) // 2, 2**nbits // 2, (size,), generator=generator)
    scale = torch.arange(size) // 32 % (nbits + 1)
    return (codes >> (nbits - scale)).to(torch.int32)


def unpacked_by_hand(body: torch.Tensor, num_codes: int, block: int) -> tuple[list[int], int]:
    """Read a body without bases as the format page describes it; return codes and size."""
    num_tiles, num_blocks = -(-num_codes // 1024), -(-num_codes // block)
    widths_start = padded(4 * (num_tiles + 1))
    words_start = widths_start + padded(num_blocks)
    offsets = integers(body, 0, num_tiles + 1, 4)
    widths = integers(body, widths_start, num_blocks, 1)
    bits, place, codes = bits_of(body[words_start:]), 0, []
    for index, width in enumerate(widths):
        if index * block % 1024 == 0:
            assert offsets[index * block // 1024] * 32 == place
        for _ in range(block):
            field = number(bits[place : place + width])
            codes.append(field // 2 if field % 2 == 0 else -(field + 1) // 2)
            place += width
    assert offsets[-1] * 32 == place
    return codes[:num_codes], words_start + padded(place // 8) + 16


@pytest.mark.parametrize("block", [32, 64])
@pytest.mark.parametrize("nbits", [0, 1, 5, 8, 13, 16, 20, 32])
def test_bits_lie_where_the_layout_says(block, nbits):
    for size in SIZES:
        codes = codes_of(size, nbits)
        body = pack(codes, block)
        found, nbytes = unpacked_by_hand(body, size, block)
        assert found == codes.tolist()
        assert nbytes == body.numel()


@pytest.mark.parametrize("block", [32, 64])
def test_bases_are_the_smallest_codes_of_their_blocks(block):
    codes = codes_of(3000, 20) + 1_000_000
    body = pack(codes, block, base=True)
    num_blocks = -(-3000 // block)
    differences, lead_nbytes = unpacked_by_hand(body, num_blocks, 32)
    bases = torch.tensor(differences).cumsum(0).tolist()
    assert bases == [min(part) for part in codes.split(block)]
    zigzag, _ = unpacked_by_hand(body[lead_nbytes:], 3000, block)
    fields = [2 * code if code >= 0 else -2 * code - 1 for code in zigzag]
    assert [field + bases[k // block] for k, field in enumerate(fields)] == codes.tolist()


@pytest.mark.parametrize("base", [False, True])
@pytest.mark.parametrize("block", [32, 64])
def test_every_int32_comes_back(block, base):
    extremes = torch.tensor([-(2**31), 2**31 - 1, 0, -1, 1], dtype=torch.int32).repeat(333)
    for codes in (extremes, extremes[::5].contiguous(), codes_of(3000, 32)):
        body = pack(codes, block, base)
        found, nbytes = unpack(body, codes.numel(), block, base)
        assert torch.equal(found, codes)
        assert nbytes == body.numel()


def test_zero_blocks_cost_one_byte_each():
    zeros = torch.zeros(1024 * 64, dtype=torch.int32)
    # one byte per block of 32, four per tile of 1024, and the padding
    assert pack(zeros).numel() <= 2048 + 4 * 65 + 8 + 16


def test_a_constant_far_from_zero_is_nearly_free_with_bases():
    codes = torch.full((1024 * 64,), 987_654, dtype=torch.int32)
    assert pack(codes, 32, base=True).numel() < 2 * 2048 + 1024
    assert pack(codes).numel() > 1024 * 64 * 2


def test_trailing_bytes_are_not_read():
    codes = codes_of(1500, 9)
    body = pack(codes)
    longer = torch.cat([body, torch.full((64,), 255, dtype=torch.uint8)])
    found, nbytes = unpack(longer, 1500)
    assert torch.equal(found, codes)
    assert nbytes == body.numel()


@pytest.mark.parametrize("block", [32, 64])
def test_contradicting_widths_are_refused(block):
    body = pack(codes_of(3000, 12), block)
    layout = BitpackLayout(3000, block)
    for place, value in ((layout.widths_start + 1, 33), (layout.widths_start, 255), (4, 1)):
        changed = body.clone()
        changed[place] = value
        assert_rejects(lambda changed=changed: unpack(changed, 3000, block), CorruptDataError)
    # widths above 32 that agree with the offsets, and all the words they ask for
    for width in (33, 64, 255):
        num_words = width * layout.num_blocks * (block // 32)
        wide = torch.zeros(layout.body_nbytes(num_words), dtype=torch.uint8)
        offsets = [min(k * width * 32, num_words) for k in range(layout.num_tiles + 1)]
        wide[: 4 * len(offsets)] = torch.tensor(offsets, dtype=torch.int32).view(torch.uint8)
        wide[layout.widths_start : layout.widths_start + layout.num_blocks] = width
        assert_rejects(lambda wide=wide: unpack(wide, 3000, block), CorruptDataError)
    for size in (0, 8, layout.words_start, body.numel() - 1):
        assert_rejects(lambda size=size: unpack(body[:size], 3000, block), CorruptDataError)
