"""What a GPU cannot hold, and what 32 bits cannot count."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from tersor import Bound, TensorInfo, compress, create, decode_batch, decompress, encode_batch
from tersor.errors import SpecError
from tests.checks import assert_bits_equal

pytestmark = pytest.mark.gpu
GIB = 2**30
PART_ROWS = 2**24
CODECS = {
    "flat": lambda: create("flat", bound=Bound.relative(0.01)),
    "ans": lambda: create("ans", bound=Bound.relative(0.01)),
    "rows": lambda: create("rows", bound=Bound.relative(0.01), entropy="ans"),
    "group4": lambda: create("group4", hadamard=True),
    "half": lambda: create("half"),
}


@contextmanager
def little_memory(spare_nbytes: int) -> Iterator[None]:
    """Leave this process so much more memory than it has."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(
        (torch.cuda.memory_reserved() + spare_nbytes) / total
    )
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("name", CODECS)
def test_the_next_call_works_after_memory_ran_out(name):
    codec = CODECS[name]()
    small = [torch.randn(200, 16, device="cuda") for _ in range(3)]
    infos, codecs = [TensorInfo.of(x) for x in small], [codec] * 3
    before = encode_batch(small, codecs).trimmed()
    # no payload of these 600 MiB fits into 32 MiB
    large = torch.zeros(150 * 2**20, device="cuda").view(-1, 16)
    with little_memory(2**25), pytest.raises(torch.cuda.OutOfMemoryError):
        encode_batch([large, large], [codec] * 2)
    after = encode_batch(small, codecs).trimmed()
    assert_bits_equal(after.buffer, before.buffer)
    for x, y in zip(
        decode_batch(before, infos, codecs), decode_batch(after, infos, codecs), strict=True
    ):
        assert_bits_equal(x, y)


@pytest.mark.parametrize("name", CODECS)
def test_more_values_than_32_bits_count(name):
    if torch.cuda.mem_get_info()[0] < 60 * GIB:
        pytest.skip("needs 60 GiB of GPU memory")
    num_rows = 2**27 + 1000
    pattern = torch.randn(1000, 16, device="cuda")
    x = pattern[torch.arange(num_rows, device="cuda") % 1000]
    x[-1] = pattern.max() * 2
    codec = CODECS[name]()
    with pytest.raises(SpecError, match="one payload holds at most"):
        encode_batch([x], [codec])
    y = decompress(compress(x, codec=codec))
    limit = 0.01 * (x.max() - x.min())
    for original, decoded in zip(x.split(PART_ROWS), y.split(PART_ROWS), strict=True):
        if codec.takes_bound():
            assert (original - decoded).abs().max() <= limit
        else:
            # a part is made of whole groups: alone it decodes to the same values
            alone = codec.unpack(codec.pack(original))
            assert torch.equal(alone.view(torch.int32), decoded.view(torch.int32))
