"""New memory keeps torch's own rules, however large it is."""

from __future__ import annotations

import pytest
import torch

from tersor.raw_bytes import empty, joined

CPU = torch.device("cpu")
LARGE = 3 * 2**20 + 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
@pytest.mark.parametrize("shape", [(), (0, 4), (7,), (LARGE, 2)])
def test_new_memory_has_the_shape_and_dtype_that_were_asked_for(shape, dtype):
    made = empty(shape, dtype, CPU)
    assert (tuple(made.shape), made.dtype, made.device) == (shape, dtype, CPU)
    made.fill_(1)
    assert bool((made == 1).all())


def test_large_new_memory_can_be_resized_like_any_other_tensor():
    made = empty((LARGE,), torch.float64, CPU)
    made.untyped_storage().resize_(0)
    assert made.resize_(2 * LARGE).numel() == 2 * LARGE


@pytest.mark.parametrize("num_bytes", [0, 3, 2 * LARGE])
def test_joined_parts_follow_one_another(num_bytes):
    parts = [torch.arange(n, dtype=torch.int64).to(torch.uint8) for n in (num_bytes, 0, 9)]
    assert torch.equal(joined(parts), torch.cat(parts))
