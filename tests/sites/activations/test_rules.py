"""Rules that cannot work are refused when they are given, and those at the ends of the range do what they can."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from tersor import Bound, SpecError, create
from tersor.kernels.group.rms.layout import LEAST_STEP, MOST_STEP
from tersor.sites import activations
from tersor.sites.activations.quality import Quality
from tests.sites.activations.models import cnn

_NO_FACTORS = [0, 0.0, -1.0, float("nan"), float("inf"), 10**400, True, "fine", torch.ones(())]


@pytest.mark.parametrize("rule", _NO_FACTORS)
def test_what_is_no_factor_is_refused_by_wrap_and_by_rule(rule) -> None:
    with pytest.raises(SpecError, match="a rule is a factor above 0"):
        activations.wrap(cnn(), {"0": rule}, step=0.5)
    compression = activations.compressed(step=0.5)
    with (
        compression,
        pytest.raises(SpecError, match="a rule is a factor above 0"),
        compression.rule(rule),
    ):
        pass


@pytest.mark.parametrize(
    ("options", "factor", "words"),
    [
        ({"step": 0.5}, 100.0, "at most 16"),
        ({"step": 4.0}, 3.0, "at most 2"),
        ({"step": 0.5}, 1e-6, "at least 0.015625"),
        ({"target_score": 0.9}, 1000, "at most 64"),
        ({"target_score": 0.9}, 1e-3, "at least 0.015625"),
        ({"bound": Bound.relative(0.01)}, 1000.0, "at most 100"),
        ({"bound": Bound.relative(0.01)}, 1e308, "at most 100"),
        ({"bound": Bound.absolute(0.01)}, 1e-323, "give None for exact"),
        ({"bound": Bound.absolute(1e10)}, 1e300, "at most"),
        ({"codec": "ans", "target_score": 0.9}, 1e6, "at most 64"),
        ({"codec": "group4"}, 0.5, "neither step nor bound"),
        ({"codec": "raw"}, 2, "neither step nor bound"),
    ],
)
def test_factors_that_cannot_work_are_refused_before_a_pass(options, factor, words) -> None:
    model = cnn()
    with pytest.raises(SpecError, match=words) as caught:
        activations.wrap(model, {"0": factor}, **options)
    assert "\n" not in str(caught.value)
    with pytest.raises(SpecError, match="not wrapped"):
        activations.unwrap(model)


@pytest.mark.parametrize(
    ("options", "factor"),
    [
        ({"step": 0.5}, 0.25),
        ({"step": 0.5}, 16),
        ({"step": 0.5}, np.float32(0.5)),
        ({"target_score": 0.9}, 63.0),
        ({"target_score": 0.9}, 1 / 64),
        ({"bound": Bound.relative(0.01)}, 1e-4),
        ({"bound": Bound.absolute(2.0)}, 1000),
        ({"codec": "group4"}, 1),
    ],
)
def test_factors_within_the_range_train(options, factor) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8))
    activations.wrap(model, {"*": factor}, **options)
    model(torch.randn(64, 64)).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_a_steered_step_stays_within_the_codecs_range() -> None:
    quality = Quality("rms", target_score=0.9)
    for level, factor, step in ((2.0, 60.0, MOST_STEP), (0.13, 0.02, LEAST_STEP)):
        quality.level = level
        assert quality.codec(factor=factor).step == pytest.approx(step)


def test_a_codec_that_chooses_per_tensor_is_no_rule() -> None:
    with pytest.raises(SpecError, match="chooses per tensor"):
        activations.wrap(cnn(), {"0": create("auto", bound=Bound.relative(0.1))}, step=0.5)


@pytest.mark.parametrize("pattern", [r"blocks\.\d+", "blocks.*.up$", "^0", "(0|1)", "lin.+", "x.*"])
def test_a_regular_expression_is_told_what_patterns_are(pattern) -> None:
    with pytest.raises(SpecError, match=r"no part .* fits") as caught:
        activations.wrap(cnn(), {pattern: None}, step=0.5)
    assert "those of a shell" in str(caught.value)


@pytest.mark.parametrize("pattern", ["head", "blocks.?", "[xyz]*"])
def test_a_pattern_that_fits_nothing_is_not_taken_for_a_regular_expression(pattern) -> None:
    with pytest.raises(SpecError, match=r"no part .* fits") as caught:
        activations.wrap(cnn(), {pattern: None}, step=0.5)
    assert "shell" not in str(caught.value)
    assert "'0', '1', '2'" in str(caught.value)


def test_the_example_of_the_page_uses_the_codec_of_its_rule() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.LayerNorm(64), nn.Linear(64, 10))
    rules = {"3": None, nn.LayerNorm: create("group8"), "0": 0.5}
    compression = activations.wrap(model, rules, step=1.0)
    model(torch.randn(256, 64)).sum().backward()
    assert "group8" in compression.report().forms


@pytest.mark.parametrize("rule", [8.0, create("group2")], ids=["factor", "codec"])
def test_a_coarse_rule_does_not_reach_a_part_without_one(rule) -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    x = torch.randn(256, 64, requires_grad=True)

    def gradient(context, rule) -> torch.Tensor:
        with context:
            # saves nothing, so that the part with the rule is the first to save
            h = x * 1.0
            with rule:
                one = first(h)
            two = second(h)
        return torch.autograd.grad((one + two).square().sum(), second.weight)[0]

    exact = gradient(nullcontext(), nullcontext())
    plain = gradient(activations.compressed(step=0.25), nullcontext())
    compression = activations.compressed(step=0.25)
    with compression:
        ruled = gradient(compression, compression.rule(rule))
    assert (ruled - exact).norm() < 1.5 * (plain - exact).norm()


@pytest.mark.parametrize("rule", [1 / 16, create("half")], ids=["factor", "codec"])
def test_a_finer_rule_holds_for_what_an_earlier_part_saved(rule) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    x, weight = torch.randn(256, 64), torch.randn(256, 10)

    def gradient() -> torch.Tensor:
        return torch.autograd.grad((model(x) * weight).sum(), model[2].weight)[0]

    exact = gradient()
    compression = activations.wrap(model, step=2.0)
    coarse, original_nbytes = gradient(), compression.report().original_nbytes
    activations.unwrap(model)
    compression = activations.wrap(model, {"2": rule}, step=2.0)
    fine = gradient()
    assert (fine - exact).norm() < 0.5 * (coarse - exact).norm()
    # autograd would hold it once
    assert compression.report().original_nbytes == original_nbytes


def test_the_id_of_a_codec_is_a_rule_like_the_codec() -> None:
    held = []
    for rule in ("group8", create("group8")):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8))
        compression = activations.wrap(model, {"2": rule}, step=0.5)
        model(torch.randn(64, 64)).sum().backward()
        with compression, compression.rule(rule):
            nn.functional.relu(model[0](torch.randn(64, 64, requires_grad=True))).sum()
        assert "group8" in compression.report().forms
        held.append((compression.report().forms, model[0].weight.grad))
    assert held[0][0] == held[1][0]
    assert torch.equal(held[0][1], held[1][1])


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("flat", r"give the rule tersor\.create\('flat', bound=tersor\.Bound\.relative\(0\.01\)\)"),
        ("ans", "tersor.create"),
        ("auto", "chooses per tensor"),
        (
            "exact",
            "a rule is a factor above 0, a codec or its id, or None for exact, not 'exact': unknown codec 'exact'; known are",
        ),
        (True, "a rule is a factor above 0, a codec or its id, or None for exact, not True"),
    ],
)
def test_an_id_that_makes_no_codec_names_the_way_out(rule, words) -> None:
    with pytest.raises(SpecError, match=words):
        activations.wrap(cnn(), {"0": rule}, step=0.5)
