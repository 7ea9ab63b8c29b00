"""On a GPU ``auto`` weighs size and time of what is fast there; in Triton's interpreter where there is none."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")
from tersor import Bound, compress, decompress, use_backend
from tersor.codecs import choices
from tersor.codecs.auto import Auto
from tersor.codecs.choices import CHOICES
from tersor.codecs.costs import CodecCost, Costs
from tersor.codecs.costs.shipped import H200
from tersor.kernels.batch import encoded_list
from tests.checks import assert_within_bound
from tests.triton_device import DEVICE, MARKS

pytestmark = MARKS


@pytest.fixture(autouse=True)
def no_earlier_choices():
    """Every test chooses anew, though all use tensors of the same shapes."""
    CHOICES.clear()
    yield
    CHOICES.clear()


def noise(count: int = 1000) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(1)).to(DEVICE)


def spiky() -> torch.Tensor:
    """Small values with a large one in almost every block, which decides the width of all its fields."""
    x = 0.3 * noise(2000)
    x[::10] = 30 * x[::10].sign()
    return x


def chosen(x: torch.Tensor, bound: Bound, **options: float) -> tuple[str, str]:
    with use_backend("gpu"):
        packed = compress(x, bound, **options)
        assert_within_bound(x, decompress(packed), packed.error_bound)
    return packed.codec.codec_id, packed.reason


def test_only_codecs_with_kernels_for_lists_or_prediction_are_tried():
    with use_backend("gpu"):
        found = Auto(bound=Bound.relative(0.01)).candidates(torch.zeros(2, 3, 4, device=DEVICE))
    names = [codec.codec_id for codec in found]
    assert names == ["flat", "ans", "delta", "delta", "delta", "rows", "raw"]
    assert found[-2].entropy == "ans"


@pytest.fixture
def without_fixed_costs(monkeypatch):
    """Costs as they are of tensors so large that the fixed time of a call does not count."""
    codecs = {
        name: replace(cost, encode_fixed_us=0, decode_fixed_us=0)
        for name, cost in H200.codecs.items()
    }
    plant_costs(monkeypatch, codecs)


def plant_costs(monkeypatch, codecs: dict[str, CodecCost]) -> None:
    costs = Costs("Planted GPU", "measured", codecs)
    monkeypatch.setattr("tersor.codecs.auto.costs_on", lambda device: costs)


@pytest.mark.usefixtures("without_fixed_costs")
def test_few_codes_are_coded_by_rans_and_many_packed():
    codec, reason = chosen(spiky(), Bound.absolute(0.5))
    assert codec == "ans"
    assert "fastest over 400 Gbit/s" in reason
    # 600 codes: rANS takes a second pass, which costs more time than its bytes save
    assert chosen(spiky(), Bound.absolute(0.05))[0] == "flat"


@pytest.mark.usefixtures("without_fixed_costs")
def test_a_bandwidth_that_is_named_takes_the_place_of_400_gbit():
    codec, reason = chosen(spiky(), Bound.absolute(0.5), bandwidth_gbit_s=1e6)
    assert codec == "raw"
    assert "fastest over 1e+06 Gbit/s" in reason


@pytest.mark.usefixtures("without_fixed_costs")
def test_repeated_rows_are_found():
    table = noise(2 * 32).view(2, 32)
    rows = table[torch.arange(96, device=DEVICE) % 2]
    assert chosen(rows, Bound.relative(0.03))[0] == "rows"


def test_other_costs_make_another_choice(monkeypatch):
    # 8 kB: a call of 20 us costs more than the bytes that rANS saves
    for fixed_us, expected in ((0, "ans"), (20, "flat")):
        CHOICES.clear()
        quick, slow = CodecCost.of((0, 1000), (0, 1000)), CodecCost.of((9e3, 1000), (9e3, 1000))
        ans = CodecCost.of((fixed_us, 1000), (fixed_us, 1000))
        plant_costs(
            monkeypatch,
            {**dict.fromkeys(H200.codecs, slow), "flat": quick, "ans": ans, "raw": quick},
        )
        assert chosen(spiky(), Bound.absolute(0.5))[0] == expected


def test_the_fixed_cost_of_a_call_decides_for_a_small_tensor(monkeypatch):
    plant_costs(monkeypatch, H200.codecs)
    # the bytes of 8 kB cross 100 Gbit/s in 0.6 us, and no codec is called in that time
    codec, reason = chosen(spiky(), Bound.absolute(0.5), bandwidth_gbit_s=100.0)
    assert codec == "raw"
    assert "fastest over 100 Gbit/s" in reason
    # where nobody names a link, bytes are saved all the same, by the codec with the shortest call
    codec, reason = chosen(spiky(), Bound.absolute(0.5))
    assert codec == "flat"
    assert reason.endswith("by costs measured on this GPU (Planted GPU)")


def test_the_reason_names_the_costs():
    reason = chosen(spiky(), Bound.absolute(0.5))[1]
    assert re.fullmatch(
        r"\w+ \(.*\) was the fastest over 400 Gbit/s of 4 codecs on a sample of 2000 values: "
        r"ratio [\d.]+, [\d.]+ ms by costs .*",
        reason,
    )


def test_what_no_codec_makes_smaller_is_stored_by_size():
    codec, reason = chosen(noise(), Bound.absolute(0.0))
    assert codec == "raw"
    assert reason == "raw was the smallest of 4 codecs on a sample of 1000 values: ratio 1.00"


def test_values_that_are_not_finite_are_no_range():
    x = noise()
    x[::7] = torch.nan
    x[3] = torch.inf
    assert chosen(x, Bound.absolute(0.2))[0] in ("ans", "flat")
    assert chosen(torch.full((64,), torch.nan, device=DEVICE), Bound.absolute(0.2))[0]


@pytest.fixture
def tries(monkeypatch):
    """Count how often candidates are tried."""
    made = []
    choose = Auto.choose

    def counted(self: Auto, x: torch.Tensor, *options: float) -> object:
        made.append(tuple(x.shape))
        return choose(self, x, *options)

    monkeypatch.setattr(Auto, "choose", counted)
    return made


def test_a_choice_stands_for_tensors_of_the_same_form(tries):
    first = chosen(spiky(), Bound.relative(0.01))
    # the bound of the second tensor is its own: assert_within_bound in chosen, and twice the error
    codec, reason = chosen(2 * spiky(), Bound.relative(0.01))
    assert (codec, reason) == (first[0], f"chosen 1 call before for this shape: {first[1]}")
    assert chosen(spiky(), Bound.relative(0.01))[1].startswith("chosen 2 calls before")
    assert len(tries) == 1


def test_the_promised_error_is_that_of_the_tensor_at_hand():
    with use_backend("gpu"):
        found = [compress(k * spiky(), Bound.relative(0.01)).error_bound for k in (1, 4)]
    assert found[1] == 4 * found[0]


def test_another_form_is_chosen_for_anew(tries):
    x, bound = spiky(), Bound.relative(0.01)
    for other in (x, x[:-1], x.view(2, -1), x.to(torch.float16)):
        chosen(other, bound)
    chosen(x, Bound.relative(0.02))
    chosen(x, bound, bandwidth_gbit_s=10.0)
    assert len(tries) == 6


def test_data_that_compresses_otherwise_ends_a_choice(tries):
    bound = Bound.absolute(0.5)
    chosen(spiky(), bound)
    chosen(spiky() / 100, bound)
    assert len(tries) == 1, "what a tensor is like is known once it is encoded"
    chosen(spiky() / 100, bound)
    assert len(tries) == 2


def test_a_choice_ends_after_64_calls(tries, monkeypatch):
    monkeypatch.setattr(choices, "MAX_CALLS", 3)
    for _ in range(7):
        chosen(spiky(), Bound.relative(0.01))
    assert len(tries) == 3


def test_a_standing_choice_never_makes_a_tensor_larger():
    x = torch.zeros(2000, device=DEVICE)
    with use_backend("gpu"):
        compress(x, Bound.absolute(1e-6))
        # random bits of an exponent each: nothing is smaller than exactly
        wild = torch.randint(1, 2**31 - 2**24, (2000,), generator=torch.Generator().manual_seed(1))
        wild = wild.to(torch.int32).view(torch.float32).to(DEVICE)
        packed = compress(wild, Bound.absolute(1e-6))
    assert packed.nbytes <= wild.nbytes
    assert packed.reason.startswith("raw, because")
    assert packed.error_bound == 1e-6


def test_all_candidates_are_tried_with_one_wait(monkeypatch):
    waits = []
    read = encoded_list._read

    def counted(tensors: list[torch.Tensor]) -> object:
        waits.append(len(tensors))
        return read(tensors)

    monkeypatch.setattr(encoded_list, "_read", counted)
    with use_backend("gpu"):
        Auto(bound=Bound.absolute(0.5)).choose(noise().view(10, 100), 0.5)
    # sizes of flat, ans, two of delta and rows; which ans and rows left to a second pass
    assert waits == [7]
