"""Which tensors of a list share a call of a codec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tersor import Bound, TensorInfo, create
from tersor.codecs.stream import Flat
from tersor.container import calls, coding
from tersor.container.calls import calls_of
from tersor.errors import SpecError
from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.runtime.sparing import sparing_memory


def tensors(count: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.zeros(3, dtype=dtype) for _ in range(count)]


def test_codecs_that_differ_in_their_bound_alone_share_a_call():
    bounds = [Bound.relative(0.1), Bound.absolute(0.2), Bound.relative(0.1), Bound.relative(0.3)]
    codecs = [Flat(bound=bound) for bound in bounds]
    [(codec, places)] = calls_of(codecs, tensors(4), range(4))
    assert (codec, places) == (codecs[0], [0, 1, 2, 3])


def test_dtypes_and_other_options_are_apart():
    bound = Bound.relative(0.1)
    flat, wide, half = Flat(bound=bound), Flat(bound=bound, block=64), create("half")
    codecs = [flat, wide, half, flat, flat, wide]
    xs = [*tensors(3), *tensors(1, torch.float16), *tensors(2)]
    made = list(calls_of(codecs, xs, range(6)))
    assert [places for _, places in made] == [[0, 4], [1, 5], [2], [3]]


class MadeAnew(Sequence[Any]):
    """Codecs that nobody else holds, so that one may get the id of another."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, k: Any) -> Any:
        if k >= len(self):
            raise IndexError
        return Flat(bound=Bound.absolute(1.0 + k), block=(32, 64)[k % 2])


def test_codecs_that_are_made_when_asked_for_are_not_taken_for_each_other():
    (_, even), (_, odd) = calls_of(MadeAnew(), tensors(200), range(200))
    assert (even, odd) == (list(range(0, 200, 2)), list(range(1, 200, 2)))


def test_seeds_are_apart():
    codecs = [create("group4", seed=seed) for seed in (None, 1, 1, 2)]
    made = list(calls_of(codecs, tensors(4), range(4)))
    assert [places for _, places in made] == [[0], [1, 2], [3]]


def test_a_list_that_passed_is_not_checked_again(monkeypatch):
    codecs = [Flat(bound=Bound.relative(0.1))] * 3
    first = calls.form_to_encode(tensors(3), codecs)
    monkeypatch.setattr(calls, "_check_can_encode", None)
    assert calls.form_to_encode(tensors(3), codecs) is first


def test_what_differs_from_a_list_that_passed_is_checked():
    codecs = [Flat(bound=Bound.relative(0.1))] * 3
    calls.form_to_encode(tensors(3), codecs)
    for others in (
        [*tensors(2), torch.zeros(3, dtype=torch.int64)],
        [*tensors(2), torch.zeros(3, device="meta")],
        [*tensors(2), torch.zeros(3).to_sparse()],
        tensors(2),
        [*tensors(2), "no tensor"],
    ):
        with pytest.raises(SpecError):
            calls.form_to_encode(others, codecs)
    with pytest.raises(SpecError):
        calls.form_to_encode(tensors(3), [*codecs[:2], "no codec"])


def test_a_list_that_passed_holds_its_codecs():
    codecs = [Flat(bound=Bound.relative(0.1))]
    ids = list(map(id, codecs))
    calls.form_to_encode(tensors(1), codecs)
    codecs.clear()
    made = [create("half") for _ in range(1000)]
    assert not set(ids) & set(map(id, made)), "another codec would be taken for the one that passed"


def test_outputs_that_fitted_once_are_asked_again_for_what_may_change():
    codecs = [Flat(bound=Bound.relative(0.1))] * 2
    infos = [TensorInfo.of(x) for x in tensors(2)]
    device = torch.device("cpu")

    def form(out: list[torch.Tensor] | None) -> calls.ListForm:
        return calls.form_to_decode(infos, codecs, out, 2, device)

    out = tensors(2)
    plain = form(out)
    assert plain.is_plain
    assert form(tensors(2)) is plain
    assert not form([torch.zeros(6)[::2], out[1]]).is_plain
    assert form(None) is form(None) is not plain
    with pytest.raises(SpecError, match="gradient"):
        form([torch.zeros(3, requires_grad=True), out[1]])
    with pytest.raises(SpecError, match="shape"):
        form([torch.zeros(4), out[1]])
    with pytest.raises(SpecError, match="as many outputs"):
        form(out[:1])


def test_many_forms_of_a_list_are_remembered_and_the_oldest_forgotten():
    codecs, most = [Flat(bound=Bound.relative(0.1))] * 2, calls._MAX_FORMS

    def form(k: int) -> calls.ListForm:
        return calls.form_to_encode([torch.zeros(5), torch.zeros(k)], codecs)

    forms = [form(k + 1) for k in range(most + 1)]
    assert form(most + 1) is forms[most]
    assert form(2) is forms[1]
    assert form(1) is not forms[0]


def test_forms_whose_first_tensors_differ_do_not_push_each_other_out():
    codecs = [Flat(bound=Bound.relative(0.1))]
    forms = [calls.form_to_encode([torch.zeros(k + 1)], codecs) for k in range(200)]
    again = [calls.form_to_encode([torch.zeros(k + 1)], codecs) for k in range(200)]
    assert all(one is other for one, other in zip(forms, again, strict=True))


def test_a_repetition_is_neither_noted_nor_used_where_memory_is_short():
    xs, codecs = tensors(1), [Flat(bound=Bound.relative(0.1))]
    form = calls.form_to_encode(xs, codecs)
    first = EncodedList([8], torch.zeros(8, dtype=torch.uint8), again=lambda _: first)
    form.repeat(first)
    other = EncodedList([8], torch.zeros(8, dtype=torch.uint8), again=lambda _: other)
    with sparing_memory():
        form.repeat(other)
        assert coding._encode_again(form, xs) is None
    (part,) = coding._encode_again(form, xs)
    assert part.encoded is first


def test_a_list_with_a_tensor_twice_is_remembered_too():
    codecs = [Flat(bound=Bound.relative(0.1))] * 2
    x = torch.zeros(3)
    assert calls.form_to_encode([x, x], codecs) is calls.form_to_encode([x, x], codecs)
