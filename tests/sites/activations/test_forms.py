"""Every form gives back what it was made of."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from tersor.codecs.lossless import Lossless
from tersor.sites.activations import forms
from tersor.sites.activations.entry import has_no_gaps, is_held_elsewhere, memory_layout
from tersor.sites.activations.forms import BitFields, exact_form
from tersor.sites.activations.pooling import PoolIndices, PoolingWindows
from tests.checks import assert_bits_equal

INTEGERS = (torch.bool, torch.uint8, torch.int32, torch.int64)


@pytest.mark.parametrize(
    "values",
    [
        torch.rand(1000) > 0.5,
        torch.zeros(1000, dtype=torch.bool),
        torch.tensor([0.0, 1.25]).repeat(500),
        torch.full((1000,), -3.0),
        torch.tensor([-1.0, 2.0], dtype=torch.bfloat16).repeat(500),
        torch.randint(-5, 900, (1000,)),
        torch.full((1000,), 7),
        torch.tensor([-(2**62), -(2**62) + 3]).repeat(500),
        torch.randint(0, 3, (1000,), dtype=torch.int32),
        torch.randint(0, 2, (1000,), dtype=torch.uint8),
        torch.tensor([-(2**62), 2**62]).repeat(500),
        torch.tensor([0.0, -0.0]).repeat(500),
        torch.tensor([0.0, torch.nan]).repeat(500),
        torch.rand(1000).index_fill_(0, torch.arange(950), 0.0),
    ],
)
def test_masks_integers_and_sparse_features_come_back_exactly_from_fewer_bytes(values) -> None:
    form = exact_form(values)
    assert form is not None
    assert form.nbytes * (1.25 if values.dtype in INTEGERS else 8) <= values.nbytes
    assert_bits_equal(form.restored(), values)


@pytest.mark.parametrize(
    "values",
    [
        torch.randn(1000),
        torch.tensor([0.0, 1.0, 2.0]).repeat(400),
        torch.tensor([0.0, 1.0]).repeat(500).index_fill_(0, torch.tensor([999]), 0.5),
        torch.rand(1000).index_fill_(0, torch.arange(850), 0.0),
        torch.randint(-(2**62), 2**62, (1000,)),
        torch.randint(0, 256, (1000,), dtype=torch.uint8),
        torch.randint(0, 128, (1000,), dtype=torch.uint8),
        torch.randn(100, dtype=torch.complex64),
    ],
)
def test_what_has_no_smaller_exact_form_is_left_alone(values) -> None:
    assert exact_form(values) is None


@pytest.mark.parametrize("low", [0, 7])
def test_more_values_than_one_call_packs_come_back(low) -> None:
    values = torch.randint(low, 12, ((1 << 20) + 3,))
    assert torch.equal(BitFields.of(values, 11).restored(), values)
    form = exact_form(values)
    assert form is not None
    assert torch.equal(form.restored(), values)


def test_a_tensor_without_a_small_form_is_left_before_all_of_it_was_packed(monkeypatch) -> None:
    monkeypatch.setattr(forms, "_VALUES_PER_CALL", 100)
    seen = []
    pack_chunk = Lossless.pack_chunk

    def counting(self, x, error_bound=None):
        seen.append(x.numel())
        return pack_chunk(self, x, error_bound)

    monkeypatch.setattr(Lossless, "pack_chunk", counting)
    assert exact_form(torch.randn(8000)) is None
    assert sum(seen) <= 1000


class _Blind(TorchDispatchMode):
    """Refuses to tell the host a value, for which it would wait for a GPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_forms_of_masks_and_of_places_are_chosen_without_a_look_at_the_values() -> None:
    mask, x = torch.rand(1000) > 0.5, torch.randn(2, 3, 8, 8)
    _, indices = functional.max_pool2d(x, 2, return_indices=True)
    windows = PoolingWindows.of_call(2, (x, 2), {})
    with pytest.raises(AssertionError), _Blind():
        mask[0].item()
    with _Blind():
        found = [exact_form(mask), PoolIndices.of(indices, windows)]
        restored = [form.restored() for form in found]
    assert [form.nbytes for form in found] == [128, 24]
    assert_bits_equal(restored[0], mask)
    assert_bits_equal(restored[1], indices.reshape(-1))


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("kernel", [2, 3])
@pytest.mark.parametrize("stride", [1, 2, None])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_indices_of_max_pooling_come_back_exactly(
    dims, kernel, stride, dilation, ceil_mode
) -> None:
    x = torch.randn(2, 3, *(9, 11, 10)[:dims])
    options = {
        "kernel_size": kernel,
        "stride": stride,
        "padding": kernel // 2,
        "dilation": dilation,
    }
    pool = getattr(functional, f"max_pool{dims}d")
    _, indices = pool(x, **options, ceil_mode=ceil_mode, return_indices=True)
    windows = PoolingWindows.of_call(dims, (x,), options)
    assert windows is not None
    form = PoolIndices.of(indices, windows)
    assert form is not None
    assert torch.equal(form.restored(), indices.reshape(-1))
    assert int(windows.places(indices).max()) < kernel**dims


def test_windows_larger_than_the_input_are_refused_and_the_largest_that_fit_are_not() -> None:
    x = torch.randn(2, 3, 8, 4)
    fits = {"kernel_size": 4, "stride": 1, "padding": 2}
    _, indices = functional.max_pool2d(x, **fits, return_indices=True)
    windows = PoolingWindows.of_call(2, (x,), fits)
    assert windows is not None
    assert torch.equal(PoolIndices.of(indices, windows).restored(), indices.reshape(-1))
    # an offset of 4 in a row of 4 values would count as one of the next row
    assert PoolingWindows.of_call(2, (x,), {"kernel_size": 5, "stride": 1, "padding": 2}) is None
    assert PoolingWindows.of_call(2, (x,), {"kernel_size": 3, "dilation": 2, "padding": 1}) is None


def test_indices_in_channels_last_come_back_in_the_order_of_memory() -> None:
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    _, indices = functional.max_pool2d(x, 2, return_indices=True)
    windows = PoolingWindows.of_call(2, (x, 2), {})
    assert windows is not None
    form = PoolIndices.of(indices, windows)
    assert form is not None
    restored = form.restored().as_strided(indices.shape, indices.stride())
    assert torch.equal(restored, indices)


@pytest.mark.parametrize(
    ("make", "is_dense"),
    [
        (lambda x: x, True),
        (lambda x: x.transpose(0, 2), True),
        (lambda x: x[1:3], True),
        (lambda x: x[:, 1:], False),
        (lambda x: x[..., :1].expand(-1, -1, 9), False),
        (lambda x: x[:1].expand(7, -1, -1), True),
        (lambda x: x.view(-1)[5:6].expand(4, 4), True),
        (lambda x: torch.view_as_complex(x.view(4, 6, -1, 2)).conj().imag, False),
    ],
)
def test_every_view_is_seen_in_memory_order_and_looked_at_as_before(make, is_dense) -> None:
    t = make(torch.randn(4, 6, 8))
    look = memory_layout(t)
    seen = look.values.as_strided(t.shape, look.stride)
    assert torch.equal(seen, t)
    assert look.values.is_contiguous()
    assert has_no_gaps(t) == is_dense
    shares = look.values.untyped_storage().data_ptr() == t.untyped_storage().data_ptr()
    assert shares == is_dense


def test_looks_at_the_same_memory_have_one_key_and_changed_memory_another() -> None:
    x = torch.randn(4, 6, 8)
    assert (
        memory_layout(x).key
        == memory_layout(x.view(24, 8)).key
        == memory_layout(x.transpose(0, 1)).key
    )
    assert memory_layout(x).key != memory_layout(x[1:]).key
    assert memory_layout(x[:, 1:]).key == memory_layout(x[:, 1:]).key
    before = memory_layout(x).key
    x.add_(1)
    assert memory_layout(x).key != before


def test_who_else_holds_memory_is_known() -> None:
    x = torch.randn(100)
    mine = x.detach()
    assert is_held_elsewhere(mine)
    del x
    assert not is_held_elsewhere(mine)
    flat = torch.randn(10, 10).as_strided((100,), (1,))
    assert not is_held_elsewhere(flat)
