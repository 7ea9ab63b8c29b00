"""What only ``lossless`` promises: every bit, in few bytes where a tensor has few values."""

from __future__ import annotations

import pytest
import torch

from tersor import create, decompress
from tersor.errors import CorruptDataError
from tersor.types import DTYPES
from tests import data
from tests.checks import assert_bits_equal, assert_rejects
from tests.one_by_one import decode_one

CODEC = create("lossless")
PICKS = torch.randint(0, 9, (8000,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("x", "nbits"),
    [
        (PICKS > 4, 1),
        (torch.where(PICKS > 4, 1.25, 0.0), 1),
        (torch.where(PICKS > 4, 1.25, -0.0).to(torch.bfloat16), 1),
        (PICKS, 4),
        (PICKS - 2**62, 4),
        (PICKS.to(torch.uint8) + 245, 8),
        (torch.full((8000,), 3.5), 0),
        (torch.where(PICKS == 0, torch.linspace(1, 2, 8000), 0.0), 1 + 32 / 8),
        (torch.linspace(1, 2, 8000, dtype=torch.float64), 64),
    ],
    ids=str,
)
def test_few_values_take_few_bits(x, nbits):
    packed = CODEC.pack(x)
    assert_bits_equal(decompress(packed), x)
    assert packed.nbytes <= 8000 * nbits / 8 + 48


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_comes_back(name):
    octets = torch.arange(96, dtype=torch.uint8) % (2 if name == "bool" else 251)
    for x in (octets.view(DTYPES[name]), octets[:48].repeat(2).view(DTYPES[name]).reshape(3, -1)):
        assert_bits_equal(CODEC.unpack(CODEC.pack(x)), x)
        assert CODEC.pack(x).nbytes <= CODEC.max_nbytes(tuple(x.shape), x.dtype)


def test_shared_inputs_come_back():
    for x in data.inputs(torch.float32).values():
        assert_bits_equal(CODEC.unpack(CODEC.pack(x)), x.contiguous())


def test_what_contradicts_itself_is_refused():
    for x in (PICKS > 4, PICKS, torch.where(PICKS == 0, 1.5 + PICKS, 0.0), torch.randn(9)):
        (payload,) = CODEC.pack(x[:50]).payloads
        for place, number in ((0, 4), (1, 32), (2, 1), (-1, 255)):
            changed = torch.cat([payload, payload.new_zeros(8)])
            changed[place] = number
            out = torch.empty_like(x[:50])
            assert_rejects(lambda c=changed, o=out: decode_one(CODEC, c, o), CorruptDataError)
