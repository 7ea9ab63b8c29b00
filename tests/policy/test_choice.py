"""The codec with the largest predicted speed-up wins, from measured numbers."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from tersor import Bound, create
from tersor.codecs.costs import CodecCost, Costs
from tersor.errors import SpecError
from tersor.policy import Choice, Trial, choose, estimate, predicted_speedup

QUICK = Trial(create("half"), ratio=2.0, encode_gbps=1000.0, decode_gbps=1000.0)
SMALL = Trial(create("raw"), ratio=40.0, encode_gbps=5.0, decode_gbps=5.0)


def test_speedup_is_the_published_formula():
    assert predicted_speedup(
        ratio=13.4, encode_gbps=45.0, decode_gbps=290.0, bandwidth_gbit_s=32.0
    ) == pytest.approx(1 / (1 / 13.4 + 4 * (1 / 45 + 1 / 290)))


def test_a_slow_link_wants_small_payloads_and_a_fast_one_speed():
    assert SMALL.speedup(0.8) > QUICK.speedup(0.8)
    assert QUICK.speedup(400.0) > SMALL.speedup(400.0)
    assert Choice(QUICK, (QUICK, SMALL), 400.0).speedup == QUICK.speedup(400.0)


def test_choosing_measures_every_codec_and_takes_the_best():
    sample = torch.randn(64, 32)[torch.arange(2048) % 64]
    codecs = [create("raw"), create("rows", bound=Bound.relative(0.03)), create("half")]
    found = choose(sample, codecs, bandwidth_gbit_s=0.008)
    assert [trial.codec for trial in found.trials] == codecs
    assert found.best.codec.codec_id == "rows"
    assert found.best.ratio > 20 > found.trials[2].ratio == 2.0
    assert all(trial.encode_gbps > 0 and trial.decode_gbps > 0 for trial in found.trials)
    assert found.best.speedup(0.008) == max(trial.speedup(0.008) for trial in found.trials)


def test_an_estimate_has_the_ratio_of_the_sample_and_the_speeds_of_the_costs():
    sample = torch.randn(64, 32)[torch.arange(2048) % 64]
    costs = Costs("a GPU", "shipped", {"flat": CodecCost.of((100, 2), (50, 4))})
    codec = create("flat", bound=Bound.relative(0.03))
    found = estimate(codec, sample, costs=costs, nbytes=10**6, num_sharing=10)
    assert found.ratio == codec.pack(sample).ratio
    # 500 us for the bytes and a tenth of the 100 us of the call
    assert found.encode_gbps == pytest.approx(1e6 / 510e-6 / 1e9)
    assert found.decode_gbps == pytest.approx(1e6 / 255e-6 / 1e9)


def test_costs_in_place_of_measurements_make_a_choice_that_repeats():
    sample = torch.randn(64, 32)[torch.arange(2048) % 64]
    codecs = [create("rows", bound=Bound.relative(0.03)), create("raw")]
    for fixed_us, expected in ((0, "rows"), (1e5, "raw")):
        costs = Costs(
            "a GPU",
            "shipped",
            {
                "rows": CodecCost.of((fixed_us, 100), (0, 100)),
                "raw": CodecCost.of((0, 1e3), (0, 1e3)),
            },
        )
        trial = partial(estimate, costs=costs, nbytes=sample.nbytes, num_sharing=1)
        found = [choose(sample, codecs, 10.0, trial) for _ in range(2)]
        assert found[0] == found[1]
        assert found[0].best.codec.codec_id == expected


def test_the_sample_is_not_changed():
    sample = torch.randn(8, 6).t().requires_grad_()
    before = sample.detach().clone()
    choose(sample, [create("group8"), create("half")], 1.0)
    assert torch.equal(sample, before)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((torch.ones(3), [], 1.0), "at least one codec"),
        ((torch.ones(0), [create("half")], 1.0), "at least one codec"),
        ((torch.ones(3), [create("half")], 0.0), "bandwidth"),
        ((torch.ones(3, dtype=torch.int32), [create("half")], 1.0), "cannot encode"),
    ],
)
def test_nothing_to_choose_from_is_refused(arguments, word):
    with pytest.raises(SpecError, match=word):
        choose(*arguments)
