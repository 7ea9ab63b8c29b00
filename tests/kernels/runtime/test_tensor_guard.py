"""Whether lists of tensors have one form: torch's guards and Python give the same answers."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from tersor.kernels.runtime import tensor_guard
from tersor.kernels.runtime.tensor_guard import are_plain, guard_of


@pytest.fixture(params=["of torch", "of Python"])
def _guards(request, monkeypatch) -> None:
    if request.param == "of Python":
        monkeypatch.setattr(tensor_guard, "_guards_are_known", lambda: False)
    else:
        assert tensor_guard._guards_are_known()


def zeros(*shape: int, **options: Any) -> torch.Tensor:
    return torch.zeros(*shape, **options)


OTHERS: dict[str, Any] = {
    "shape": zeros(4, 5),
    "axes": zeros(24),
    "strides": zeros(6, 4).t(),
    "dtype": zeros(4, 6, dtype=torch.float64),
    "device": zeros(4, 6, device="meta"),
    "layout": zeros(4, 6).to_sparse(),
    "gradient": zeros(4, 6, requires_grad=True),
    "class": torch.nn.Parameter(zeros(4, 6), requires_grad=False),
    "negation": torch._neg_view(zeros(4, 6)),
    "no tensor": "text",
}


@pytest.mark.usefixtures("_guards")
def test_equal_forms_match():
    matches = guard_of([zeros(4, 6), zeros(3, dtype=torch.float16)])
    assert matches(zeros(4, 6), zeros(3, dtype=torch.float16))
    assert matches(torch.ones(4, 6), zeros(8, dtype=torch.float16)[:3])


@pytest.mark.usefixtures("_guards")
@pytest.mark.parametrize("name", OTHERS)
def test_forms_that_differ_do_not(name):
    matches = guard_of([zeros(3), zeros(4, 6)])
    assert not matches(zeros(3), OTHERS[name])


@pytest.mark.usefixtures("_guards")
def test_no_tensor_is_held():
    x = zeros(4, 6)
    ref, matches = weakref.ref(x), guard_of([x])
    del x
    gc.collect()
    assert ref() is None
    assert matches(zeros(4, 6))


@pytest.mark.parametrize("name", ["device", "layout"])
def test_tensors_that_may_hide_something_have_no_guard(name):
    assert guard_of([zeros(3), OTHERS[name]]) is None


def test_a_class_of_its_own_has_no_guard():
    class Own(torch.Tensor): ...

    assert guard_of([zeros(3).as_subclass(Own)]) is None


@pytest.mark.parametrize("name", ["strides", "gradient", "negation"])
def test_plain_tensors_are_read_as_they_lie(name):
    assert are_plain([zeros(3), zeros(4, 6)])
    assert not are_plain([zeros(3), OTHERS[name]])
