from __future__ import annotations

import pytest
import torch

from tersor.bench.core.inputs import CRITEO_KAGGLE_ROWS
from tersor.bench.kernels.device_inputs import (
    CHUNKS_NBYTES,
    DEVICE_INPUTS,
    DEVICE_SIZES,
    EMBEDDINGS_NBYTES,
    device_bounds_of,
    make_device_input,
    sizes_of,
)
from tersor.errors import SpecError

CPU = torch.device("cpu")
DTYPES = {"tensor-bf16": torch.bfloat16, "tensor-f16": torch.float16}


@pytest.mark.parametrize("name", DEVICE_INPUTS)
def test_an_input_is_made_on_the_device_and_the_same_every_time(name):
    first, second = (make_device_input(name, 2**20, CPU) for _ in range(2))
    assert first.name == name
    assert 0.98 * 2**20 < first.nbytes <= 2**20
    for x, y in zip(first.slices, second.slices, strict=True):
        assert x.dtype == DTYPES.get(name, torch.float32)
        assert x.is_contiguous()
        assert torch.equal(x, y)


def test_look_ups_are_one_tensor_per_table_of_rows_the_table_has():
    made = make_device_input("embeddings", 26 * 512 * 64 * 4, CPU)
    assert [tuple(x.shape) for x in made.slices] == [(512, 64)] * 26
    for x, num_rows in zip(made.slices, CRITEO_KAGGLE_ROWS, strict=True):
        assert len(torch.unique(x, dim=0)) <= num_rows


def test_chunks_are_the_look_ups_that_eight_ranks_get_of_each_table():
    made = make_device_input("chunks", CHUNKS_NBYTES, CPU)
    assert [tuple(x.shape) for x in made.slices] == [(64, 64)] * (26 * 8)
    whole = make_device_input("embeddings", CHUNKS_NBYTES, CPU)
    for k, x in enumerate(whole.slices):
        assert torch.equal(torch.cat(made.slices[8 * k : 8 * k + 8]), x)


def test_half_of_the_activations_are_zero():
    (x,) = make_device_input("activations", 2**20, CPU).slices
    # four standard deviations of a share of 2**18 independent values
    assert abs(float((x == 0).double().mean()) - 0.495) < 0.004


def test_look_ups_have_one_size_of_their_own():
    assert sizes_of("embeddings", DEVICE_SIZES) == (EMBEDDINGS_NBYTES,)
    assert EMBEDDINGS_NBYTES == 26 * 65536 * 64 * 4
    assert sizes_of("embeddings", (2**20,)) == (2**20,)
    assert sizes_of("chunks", DEVICE_SIZES) == (CHUNKS_NBYTES,)
    assert sizes_of("chunks", (2**20,)) == (2**20,)
    assert sizes_of("field", DEVICE_SIZES) == DEVICE_SIZES


def test_single_tensors_have_as_many_values_in_every_dtype():
    for name in ("tensor", "tensor-bf16", "tensor-f16", "tensor-field"):
        itemsize = DTYPES.get(name, torch.float32).itemsize
        assert sizes_of(name, DEVICE_SIZES) == (itemsize * 2**26,)
        assert device_bounds_of(name) == (1e-3,)
    wide, narrow = (
        make_device_input(n, 2**k, CPU) for n, k in (("tensor", 18), ("tensor-f16", 17))
    )
    assert torch.equal(wide.slices[0].half(), narrow.slices[0])


@pytest.mark.parametrize("batch", [2048, 256])
def test_look_ups_of_small_batches_are_26_tensors(batch):
    name = f"lookups-{batch}"
    (nbytes,) = sizes_of(name, DEVICE_SIZES)
    made = make_device_input(name, nbytes, CPU)
    assert [tuple(x.shape) for x in made.slices] == [(batch, 64)] * 26
    assert device_bounds_of(name) == (0.03,)


def test_an_input_that_only_the_cpu_has_is_refused_with_the_known_ones():
    with pytest.raises(SpecError, match="gradients"):
        sizes_of("embeddings-dim32", DEVICE_SIZES)
