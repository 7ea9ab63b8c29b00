"""Words are copied from any place to any other, and nothing next to them is touched.

With ``TRITON_INTERPRET=1``, as is set without a GPU, the kernel runs on CPU tensors.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl

from tersor.kernels.entropy.rans.gpu.block import _copying
from tersor.kernels.entropy.rans.gpu.place import _copy_words
from tests.triton_device import DEVICE, MARKS

pytestmark = MARKS
STEP = 4


@triton.jit(do_not_specialize=["first", "place", "count"])
def _kernel(source, target, first, place, count, copied: tl.constexpr):
    _copy_words(source + first, target + place, count, copied)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("place", [0, 1])
def test_words_are_copied_wherever_they_lie(first, place):
    words = torch.arange(1, 41, dtype=torch.int16, device=DEVICE)
    for count in (0, 1, 2, 3, 2 * STEP - 1, 2 * STEP, 2 * STEP + 1, 4 * STEP + 3):
        target = torch.full((44,), -1, dtype=torch.int16, device=DEVICE)
        _kernel[(1,)](words, target, first, place, count, copied=STEP)
        expected = torch.full_like(target, -1)
        expected[place : place + count] = words[first : first + count]
        assert torch.equal(target, expected), count


def test_a_table_that_would_be_copied_in_part_is_refused():
    _copying(10 * 512, run=5)
    for nbytes in (11 * 512, 10 * 512 + 16):
        with pytest.raises(ValueError, match="whole number of runs"):
            _copying(nbytes, run=5)
