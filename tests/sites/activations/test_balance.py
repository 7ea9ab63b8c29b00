"""Parts of a network get levels of their own: less is held at gradients that are no worse."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional

import tersor
from tersor import Bound, SpecError
from tersor.sites import activations
from tersor.sites.activations.balance import LevelFactors, PassFactors, Survey, surveyed_balance
from tests.sites.activations.models import images, resnet


def _pass(model: nn.Module, compression: activations.Compression):
    def run() -> torch.Tensor:
        with compression:
            out = model(images())
        return functional.cross_entropy(out, torch.arange(16) % 10)

    return run


def _score_and_ratio(model: nn.Module, compression: activations.Compression) -> tuple[float, float]:
    run = _pass(model, compression)
    found = compression.probe(model, run)
    run()
    return found.score, compression.report().ratio


@pytest.mark.parametrize("parts", ["kind", "tensor"])
def test_less_is_held_at_gradients_that_are_no_worse(parts) -> None:
    torch.manual_seed(0)
    model, compression = resnet(8, 2), activations.compressed(step=1.0)
    score, ratio = _score_and_ratio(model, compression)
    compression.balance(model, _pass(model, compression), parts=parts)
    balanced_score, balanced_ratio = _score_and_ratio(model, compression)
    assert balanced_score > score
    assert balanced_ratio > 1.1 * ratio


def test_parts_are_named_by_the_function_that_saves() -> None:
    torch.manual_seed(0)
    model, compression = resnet(8, 2), activations.compressed(step=1.0)
    kinds = compression.balance(model, _pass(model, compression))
    assert kinds.keys() == {"batch_norm", "relu"}
    tensors = compression.balance(model, _pass(model, compression), parts="tensor")
    numbers = [*range(1, 1 + len(tensors) // 2)]
    assert tensors.keys() == {f"{kind} {k}" for kind in kinds for k in numbers}
    assert compression.report().factors == tensors


def test_a_factor_reaches_the_tensors_of_its_part_alone() -> None:
    balanced = PassFactors(LevelFactors("tensor", {"relu 2": 0.5}))
    calls = ["relu", "batch_norm", "relu", "relu", "batch_norm"]
    assert [balanced.factor(name, 1) for name in calls] == [1.0, 1.0, 0.5, 1.0, 1.0]
    balanced = PassFactors(LevelFactors("kind", {"relu": 0.5}))
    assert [balanced.factor(name, 1) for name in calls] == [0.5, 1.0, 0.5, 0.5, 1.0]


def test_a_survey_makes_one_part_lossy_at_a_time() -> None:
    lossy: list[set[str]] = []

    def gradients(survey: Survey) -> dict[str, torch.Tensor]:
        one = survey.begin_pass()
        names = Counter(a=3, b=1)
        lossy.append({name for name in names if one.factor(name, 10 * names[name]) is not None})
        noise = 0.3 * ("a" in lossy[-1]) + 0.1 * ("b" in lossy[-1])
        return {"w": torch.tensor([1.0, noise])}

    found = surveyed_balance("kind", {"w": torch.tensor([1.0, 0.0])}, gradients)
    assert lossy == [{"a", "b"}, {"a"}, {"b"}]
    # nine times the loss of b, of three times the values: a factor of 3 ** 0.5 between them, in steps of 2 ** 0.5
    assert found.factors == {"a": 1.0, "b": pytest.approx(2**0.5)}


def test_there_are_few_levels_so_that_tensors_are_encoded_together() -> None:
    def gradients(survey: Survey) -> dict[str, torch.Tensor]:
        one = survey.begin_pass()
        lossy = [one.factor(f"f{k}", 10) is not None for k in range(40)]
        noise = sum(0.01 * (1 + k) ** 2 for k in range(40) if lossy[k])
        return {"w": torch.tensor([1.0, noise**0.5 / 10])}

    found = surveyed_balance("kind", {"w": torch.tensor([1.0, 0.0])}, gradients)
    assert set(found.factors.values()) <= {2 ** (k / 2) for k in range(-2, 3)}
    assert len(set(found.factors.values())) > 2


def test_balancing_leaves_no_trace_but_the_factors() -> None:
    torch.manual_seed(0)
    model, compression = resnet(8, 2), activations.compressed(step=1.0)
    run = _pass(model, compression)
    run().backward()
    before = {name: x.clone() for name, x in model.state_dict().items()}
    grads = [p.grad.clone() for p in model.parameters()]
    report, random = compression.report(), torch.get_rng_state()
    compression.balance(model, run)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))
    assert torch.equal(torch.get_rng_state(), random)
    assert compression.report().forms == report.forms
    assert compression.report().num_steps == 1
    assert compression.report().level == report.level


def test_an_error_in_between_ends_the_survey() -> None:
    model, compression = resnet(8, 2), activations.compressed(step=1.0)
    run, calls = _pass(model, compression), Counter()

    def failing() -> torch.Tensor:
        calls["forward"] += 1
        if calls["forward"] == 3:
            raise RuntimeError("planted")
        return run()

    with pytest.raises(RuntimeError, match="planted"):
        compression.balance(model, failing)
    run()
    assert "exact: survey" not in compression.report().forms
    assert compression.report().factors == {}


def test_no_part_gets_coarser_than_a_controller_would_make_it() -> None:
    torch.manual_seed(0)
    model = resnet(8, 2)
    compression = activations.compressed(step=2.0)
    factors = compression.balance(model, _pass(model, compression))
    assert max(factors.values()) > 1
    run = _pass(model, compression)
    run()
    held = compression.report().forms["rms"].held_nbytes
    # as coarse as allowed already: only what gets finer changes
    finer = {k: min(1.0, x) for k, x in factors.items()}
    compression._steering.balance = LevelFactors("kind", finer)
    run()
    assert compression.report().forms["rms"].held_nbytes == held


def test_a_common_bound_that_is_steered_can_be_balanced() -> None:
    torch.manual_seed(0)
    model = resnet(8, 2)
    compression = activations.compressed("ans", target_score=0.9)
    assert compression.balance(model, _pass(model, compression)).keys() == {"batch_norm", "relu"}


def test_factors_of_rules_multiply_and_codecs_of_rules_stay() -> None:
    torch.manual_seed(0)
    model = resnet(8, 2)
    rules = {nn.BatchNorm2d: tersor.create("group8")}
    compression = activations.wrap(model, rules, step=1.0)

    def run() -> torch.Tensor:
        return functional.cross_entropy(model(images()), torch.arange(16) % 10)

    assert compression.balance(model, run).keys() == {"relu"}
    run()
    assert {"group8", "rms"} <= compression.report().forms.keys()
    activations.unwrap(model)


def test_a_checkpoint_has_the_factors() -> None:
    torch.manual_seed(0)
    model, first = resnet(8, 2), activations.compressed(step=1.0)
    factors = first.balance(model, _pass(model, first), parts="tensor")
    state = json.loads(json.dumps(first.state_dict()))
    second = activations.compressed(step=1.0)
    second.load_state_dict(state)
    assert second.report().factors == factors
    _pass(model, first)(), _pass(model, second)()
    assert second.report().forms == first.report().forms


def test_a_state_of_an_earlier_version_has_no_factors() -> None:
    compression = activations.compressed(step=1.0)
    state = compression.state_dict()
    del state["balance"]
    compression.load_state_dict(state)
    assert compression.report().factors == {}


@pytest.mark.parametrize(
    "balance",
    [
        3,
        {},
        {"parts": "all", "factors": {}},
        {"parts": "kind", "factors": {"relu": -1.0}},
        {"parts": "kind", "factors": {"relu": float("nan")}},
        {"parts": "kind", "factors": ["relu"]},
    ],
)
def test_a_damaged_state_is_refused(balance) -> None:
    compression = activations.compressed(step=1.0)
    state = {**compression.state_dict(), "balance": balance}
    with pytest.raises(SpecError, match="no state of a compression"):
        compression.load_state_dict(state)


def test_what_has_no_common_level_is_refused() -> None:
    model = resnet(8, 2)
    for compression in (
        activations.compressed(bound=Bound.relative(0.01)),
        activations.compressed("group4"),
    ):
        with pytest.raises(SpecError, match="no level to balance"):
            compression.balance(model, _pass(model, compression))


def test_a_misused_balance_is_refused() -> None:
    model, compression = resnet(8, 2), activations.compressed(step=1.0)
    with pytest.raises(SpecError, match="'kind' or 'tensor'"):
        compression.balance(model, _pass(model, compression), parts="layer")
    with pytest.raises(SpecError, match="outside"), compression:
        compression.balance(model, _pass(model, compression))
    with pytest.raises(SpecError, match="without this context"):
        compression.balance(model, lambda: model(images()).square().mean())
    exact = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 10))
    with pytest.raises(SpecError, match="nothing to balance"):
        compression.balance(exact, _pass(exact, compression))


def test_a_balance_ends_with_the_score_of_its_factors() -> None:
    torch.manual_seed(0)
    model, compression = resnet(8, 2), activations.compressed(step=1.0)
    compression.balance(model, _pass(model, compression))
    report = compression.report()
    assert not report.is_predicted
    assert report.similarity == compression.probe(model, _pass(model, compression))
    assert f"times {report.factors['batch_norm']:.2f} (batch_norm), " in str(report)


def test_factors_of_another_model_are_said_once(caplog) -> None:
    torch.manual_seed(0)
    model, first = resnet(8, 2), activations.compressed(step=1.0)
    first.balance(model, _pass(model, first))
    second = activations.compressed(step=1.0)
    second.load_state_dict(first.state_dict())
    other = nn.Sequential(
        nn.Flatten(), nn.Linear(768, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10)
    )
    for _ in range(3):
        _pass(other, second)()
    assert len([line for line in caplog.messages if "of another model" in line]) == 1
    caplog.clear()
    _pass(model, first)()
    assert not [line for line in caplog.messages if "of another model" in line]


def test_mistaken_arguments_end_in_one_sentence() -> None:
    model, compression = resnet(8, 2), activations.compressed(step=1.0)
    run = _pass(model, compression)
    for call in (compression.balance, compression.probe):
        for arguments in ((run, model), (model, torch.zeros(()))):
            with pytest.raises(SpecError, match="give the model, then a function"):
                call(*arguments)
        with pytest.raises(SpecError, match=r"one value, not a tensor of shape \(16, 10\)"):
            call(model, lambda: model(images()))
