from __future__ import annotations

import numpy as np
import pytest
import torch

from tersor.bench.core.codes import entropy_nbits, quantize
from tersor.bench.core.inputs import CRITEO_KAGGLE_ROWS, INPUTS, embeddings, field, make_input
from tersor.errors import SpecError

SMALL_NBYTES = 2**20


@pytest.mark.parametrize("name", INPUTS)
def test_an_input_has_the_asked_size_and_is_the_same_every_time(name):
    first, second = make_input(name, SMALL_NBYTES), make_input(name, SMALL_NBYTES)
    assert first.name == name
    assert first.nbytes == SMALL_NBYTES
    for x, y in zip(first.slices, second.slices, strict=True):
        assert x.dtype == torch.float32
        assert x.is_contiguous()
        assert torch.equal(x, y)


@pytest.mark.parametrize("nbytes", [0, 2**15, 10**6])
def test_a_size_that_cannot_be_made_is_refused(nbytes):
    with pytest.raises(SpecError):
        make_input("gradients", nbytes)


def test_an_unknown_input_is_refused_with_the_known_ones():
    with pytest.raises(SpecError, match="embeddings"):
        make_input("embedding")


def test_embedding_slices_repeat_rows_as_measured_on_criteo():
    made = embeddings(26 * 2048 * 64 * 4)
    assert len(made.slices) == len(CRITEO_KAGGLE_ROWS)
    distinct = [len(np.unique(x.numpy(), axis=0)) for x in made.slices]
    for num_distinct, num_rows in zip(distinct, CRITEO_KAGGLE_ROWS, strict=True):
        assert num_distinct <= num_rows
    assert 0.26 < np.mean(distinct) / 2048 < 0.30


def test_half_of_the_activations_are_zero():
    (x,) = make_input("activations", SMALL_NBYTES).slices
    zeros = float((x == 0).double().mean())
    # four standard deviations of a share of 2**18 independent values
    assert abs(zeros - 0.495) < 0.004
    assert float(x.min()) == 0.0


def test_the_field_is_smooth():
    (x,) = field(SMALL_NBYTES).slices
    steps = [x.diff(dim=dim).abs().mean() for dim in range(3)]
    assert max(float(step) for step in steps) < 0.15 * float(x.std())


def test_entropy_is_that_of_the_histogram():
    assert entropy_nbits(torch.tensor([-1, 0, 1, 2], dtype=torch.int8)) == 8.0
    assert entropy_nbits(torch.tensor([-300, 300], dtype=torch.int16)) == 2.0
    assert entropy_nbits(torch.zeros(5, dtype=torch.int8)) == 0.0


@pytest.mark.parametrize(("offset", "dtype"), [(0.0, torch.int8), (1000.0, torch.int16)])
def test_codes_that_do_not_fit_int8_are_never_wrapped(offset, dtype):
    x = torch.linspace(offset - 1, offset + 1, 100)
    codes = quantize(x, 0.05)
    assert codes.values.dtype == dtype
    assert float((codes.values.double() * codes.step - x.double()).abs().max()) <= 0.05


def test_codes_beyond_int16_become_outliers():
    x = torch.tensor([1e6, 0.5, -1e6])
    codes = quantize(x, 0.5)
    assert codes.positions.tolist() == [0, 2]
    assert codes.outlier_values.tolist() == [1e6, -1e6]
