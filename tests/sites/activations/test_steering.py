"""The level follows the score or the budget, measured or predicted, and goes on from a checkpoint."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from torch import nn
from torch.nn import functional

from tersor import Bound, SpecError
from tersor.policy import gradient_similarity
from tersor.sites import activations
from tersor.sites.activations.quality import Quality
from tests.sites.activations.models import cnn, images, resnet


def _train(model: nn.Module, compression: activations.Compression, num_steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(num_steps):
        with compression:
            out = model(images())
        loss = functional.cross_entropy(out, torch.arange(16) % 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def _forward_and_loss(model: nn.Module, compression: activations.Compression):
    def run() -> torch.Tensor:
        with compression:
            out = model(images())
        return functional.cross_entropy(out, torch.arange(16) % 10)

    return run


def test_a_probe_of_a_lossless_codec_finds_equal_gradients() -> None:
    model = cnn()
    compression = activations.compressed("raw")
    assert compression.probe(model, _forward_and_loss(model, compression)).score == 1.0


def test_a_probe_sees_coarser_bounds() -> None:
    model, scores = resnet(), []
    for bound in (0.001, 0.02, 0.2):
        compression = activations.compressed(bound=Bound.relative(bound))
        scores.append(compression.probe(model, _forward_and_loss(model, compression)).score)
    assert scores[0] > 0.99
    assert scores == sorted(scores, reverse=True)
    assert scores[-1] < 0.9


def test_a_probe_compares_sparse_gradients() -> None:
    table = nn.EmbeddingBag(1000, 64, sparse=True)
    numbers, compression = torch.randint(0, 1000, (64, 16)), activations.compressed(step=2.0)
    layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))

    def forward_and_loss() -> torch.Tensor:
        with compression:
            out = layers(table(numbers))
        return out.square().sum()

    # behind it only products with weights and zeros of ReLU count, which are exact
    assert compression.probe(table, forward_and_loss).score == 1.0
    assert 0.2 < compression.probe(layers, forward_and_loss).score < 1
    found = compression.probe(nn.Sequential(table, layers), forward_and_loss)
    assert found.lowest < found.score < 1


def test_a_probe_leaves_no_trace() -> None:
    model = cnn()
    compression = activations.compressed(bound=Bound.relative(0.05))
    _train(model, compression, 1)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    grads = [p.grad.clone() for p in model.parameters()]
    report, state = compression.report(), torch.get_rng_state()
    compression.probe(model, _forward_and_loss(model, compression))
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert compression.report().forms == report.forms
    assert compression.report().num_steps == 1


def test_a_probe_of_nothing_is_refused() -> None:
    model = cnn()
    compression = activations.compressed("raw")
    with pytest.raises(SpecError, match="records gradients"):
        compression.probe(model, lambda: torch.zeros(()))
    with pytest.raises(SpecError, match="does not depend"):
        compression.probe(model, lambda: torch.zeros((), requires_grad=True) * 2)
    with pytest.raises(SpecError, match="outside"), compression:
        compression.probe(model, _forward_and_loss(model, compression))


def _without_norms() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(16 * 256, 10),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.ConvTranspose2d(16, 32, 2, 2), (16, 16, 16, 16)),
        (nn.ConvTranspose2d(64, 3, 4, 2, padding=1), (16, 64, 16, 16)),
        (nn.ConvTranspose2d(16, 16, 3), (16, 16, 16, 16)),
        # the first layer of a DCGAN
        (nn.ConvTranspose2d(64, 32, 4), (64, 64, 1, 1)),
        (nn.ConvTranspose2d(32, 16, 3, (2, 1), output_padding=(1, 0), groups=4), (8, 32, 16, 16)),
        (nn.ConvTranspose1d(16, 8, 4, 2, dilation=3), (16, 128)),
        (nn.ConvTranspose3d(8, 16, 2, 2), (4, 8, 8, 8, 8)),
        (nn.Conv2d(32, 16, 3, 2, groups=4), (8, 32, 32, 32)),
        (nn.Conv1d(16, 8, 4), (16, 256)),
        (nn.Linear(64, 16), (256, 64)),
    ],
)
def test_the_closed_form_predicts_what_noise_in_the_input_of_a_layer_does(layer, shape) -> None:
    x = torch.randn(shape, requires_grad=True)
    dy = torch.randn_like(layer(x))
    exact = torch.autograd.grad((layer(x) * dy).sum(), layer.weight)
    compression = activations.compressed(target_score=0.95, every=1)
    with compression:
        # not held by the test, so it is encoded
        out = layer(x * 1.0)
    lossy = torch.autograd.grad((out * dy).sum(), layer.weight)
    predicted, measured = compression._steering.predicted(), gradient_similarity(exact, lossy)
    # the energy of the noise is that of at least 512 values, so it deviates by 6 %; padding crops at most a sixteenth
    # of the products
    assert 1 - predicted.score == pytest.approx(1 - measured.score, rel=0.3)


def test_the_closed_form_agrees_with_a_probe_where_masks_are_exact() -> None:
    model = _without_norms()
    compression = activations.compressed("rms", target_score=0.9, every=1)
    measured = compression.probe(model, _forward_and_loss(model, compression))
    # forget what the probe taught
    compression._steering._calibration = 1.0
    _train(model, compression, 1)
    predicted = compression._steering.predicted()
    # at the level that the probe set, so compare at that one
    again = compression.probe(model, _forward_and_loss(model, compression))
    assert predicted is not None
    assert measured.score < 0.999
    assert 1 - predicted.score == pytest.approx(1 - again.score, rel=0.4)


def test_the_score_is_steered_to_its_target_without_a_probe() -> None:
    model, target = _without_norms(), 0.97
    compression = activations.compressed(target_score=target, every=1)
    start = compression.report().level
    _train(model, compression, 25)
    report = compression.report()
    assert report.similarity is not None
    assert report.is_predicted
    assert abs(report.similarity.score - target) < 0.03
    assert report.level != start


def test_a_bound_grows_only_after_a_probe_as_it_makes_zeros_of_small_outputs_of_relu(
    caplog,
) -> None:
    model = _without_norms()
    compression = activations.compressed("ans", target_score=0.5, every=1)
    start = compression.report().level
    assert start is not None
    with caplog.at_level(logging.WARNING, logger="tersor"):
        _train(model, compression, 5)
    assert compression.report().level == start
    assert sum("predictions miss the errors of relu" in line for line in caplog.messages) == 1
    compression.probe(model, _forward_and_loss(model, compression))
    _train(model, compression, 5)
    level = compression.report().level
    assert level is not None
    assert level > start


def test_a_weight_without_gradient_is_predicted_to_lose_nothing(generator) -> None:
    # the layer behind it starts at zero, as in LoRA and in residual branches
    last = nn.Linear(64, 64)
    nn.init.zeros_(last.weight)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), last)
    compression = activations.compressed(target_score=0.95, every=1)
    x = torch.randn(256, 64, generator=generator)
    with compression:
        out = model(x * 1.0)
    out.square().sum().backward()
    compression.state_dict()
    similarity = compression.report().similarity
    assert similarity is not None
    assert similarity.lowest > 0.9


def test_the_level_grows_only_after_a_probe_where_predictions_miss_errors(caplog) -> None:
    torch.manual_seed(0)
    model = resnet(8, 2)
    compression = activations.compressed(target_score=0.8, every=1)
    start = compression.report().level
    with caplog.at_level(logging.WARNING, logger="tersor"):
        _train(model, compression, 5)
    assert compression.report().level == start
    assert sum("predictions miss the errors of batch_norm" in line for line in caplog.messages) == 1
    assert compression.probe(model, _forward_and_loss(model, compression)).score > 0.8
    _train(model, compression, 2)
    assert compression.report().level > start


def test_the_level_falls_without_a_probe() -> None:
    torch.manual_seed(0)
    compression = activations.compressed(target_score=0.9999, every=1)
    start = compression.report().level
    _train(resnet(8, 2), compression, 5)
    assert compression.report().level < start


def test_a_probe_corrects_what_is_predicted() -> None:
    torch.manual_seed(0)
    model = resnet(8, 2)
    compression = activations.compressed("ans", target_score=0.9, every=1)
    assert compression.state_dict()["calibration"] == 1.0
    compression.probe(model, _forward_and_loss(model, compression))
    # errors that come through later layers add to those of each weight's own input
    assert compression.state_dict()["calibration"] > 1.0


def test_held_bytes_are_steered_below_a_budget() -> None:
    model = resnet()
    first = activations.compressed("ans", bound=Bound.relative(0.03))
    _train(model, first, 1)
    budget = int(0.7 * first.report().held_nbytes)
    compression = activations.compressed("ans", budget_bytes=budget)
    _train(model, compression, 8)
    assert 0.5 * budget < compression.report().held_nbytes <= budget
    level = compression.report().level
    _train(model, compression, 2)
    assert compression.report().level == level


def test_a_budget_out_of_reach_says_so_once(caplog) -> None:
    compression = activations.compressed("ans", budget_bytes=1000)
    with caplog.at_level(logging.WARNING, "tersor"):
        _train(cnn(), compression, 10)
    assert len([line for line in caplog.messages if "budget_bytes" in line]) == 1


def test_a_checkpoint_goes_on_where_it_was() -> None:
    torch.manual_seed(0)
    model = resnet(8, 2)
    first = activations.compressed("ans", target_score=0.9, every=1)
    _train(model, first, 3)
    state = json.loads(json.dumps(first.state_dict()))
    second = activations.compressed("ans", target_score=0.9, every=1)
    second.load_state_dict(state)
    assert second.state_dict() == first.state_dict()
    assert second.report().level == first.report().level


def test_states_of_other_options_are_refused() -> None:
    state = activations.compressed("ans", target_score=0.9).state_dict()
    with pytest.raises(SpecError, match="other options"):
        activations.compressed("ans", target_score=0.8).load_state_dict(state)
    with pytest.raises(SpecError, match="no state"):
        activations.compressed("ans", target_score=0.9).load_state_dict({"origin": state["origin"]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_score": 0.9, "step": 1.0}, "give one of"),
        ({"target_score": 1.5}, "target_score"),
        ({"budget_bytes": 0}, "budget_bytes"),
        ({"codec": "group4", "target_score": 0.9}, "neither step nor bound"),
        ({"codec": "group4", "step": 1.0}, "step"),
        ({"codec": "group4", "bound": Bound.relative(0.1)}, "takes no bound"),
        ({"codec": "rms", "bound": Bound.relative(0.1)}, "bound"),
        ({"codec": "ans", "step": 1.0}, "step"),
        ({"codec": "rms", "step": 100.0}, "step"),
        ({"codec": "none of these"}, "unknown codec"),
        ({"every": 0}, "every"),
        ({"window_nbytes": 1.5}, "window_nbytes"),
        ({"every": 10}, "every is of target_score; give that, or leave every out"),
        ({"every": 25, "step": 0.5}, "leave every out"),
    ],
)
def test_options_that_cannot_work_are_refused_in_one_sentence(options, message) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        activations.compressed(**options)
    assert "\n" not in str(caught.value)


def test_auto_is_rms_or_with_a_bound_ans() -> None:
    assert activations.compressed().report().codec == "rms"
    assert activations.compressed(step=0.25).report().level == 0.25
    assert activations.compressed(bound=Bound.relative(0.1)).report().codec == "ans"


def test_zeros_behind_a_relu_stay_zeros_whatever_their_number() -> None:
    quality = Quality("rms", step=1.0)
    assert quality.codec(has_zeros=True).zeros is True
    assert quality.codec().zeros == "auto"


def test_a_factor_below_the_finest_step_takes_that() -> None:
    assert Quality("rms", step=0.2).codec(factor=0.1).step < 0.2
    finer = Quality("ans", bound=Bound.relative(0.2)).codec(factor=0.5)
    assert finer.own_bound() == Bound.relative(0.1)


def test_a_probe_that_never_enters_the_context_is_refused() -> None:
    model = cnn()
    compression = activations.compressed(target_score=0.95)
    with pytest.raises(SpecError, match="ran without this context"):
        compression.probe(
            model, lambda: functional.cross_entropy(model(images()), torch.arange(16) % 10)
        )
    assert compression.report().level == 0.5


def test_a_target_that_nothing_steers_is_said_once(caplog) -> None:
    weight = torch.randn(64, 8, requires_grad=True)
    compression = activations.compressed(target_score=0.95, every=1)
    with caplog.at_level(logging.WARNING, logger="tersor"):
        for _ in range(3):
            with compression:
                # neither a linear layer nor a convolution
                out = torch.tanh(torch.randn(64, 64)) @ weight
            out.square().sum().backward()
    assert sum("target_score steers nothing yet" in line for line in caplog.messages) == 1


@pytest.mark.parametrize(
    "change", [{"level": -3.0}, {"level": 0.0}, {"level": float("nan")}, {"num_steps": "many"}]
)
def test_states_with_impossible_numbers_are_refused(change) -> None:
    compression = activations.compressed(step=0.5)
    with pytest.raises(SpecError, match="no state of a compression"):
        compression.load_state_dict({**compression.state_dict(), **change})


@pytest.mark.parametrize("state", [None, {}, []])
def test_what_is_no_state_is_refused(state) -> None:
    with pytest.raises(SpecError, match="no state of a compression"):
        activations.compressed(step=0.5).load_state_dict(state)


def test_the_state_of_another_step_is_refused() -> None:
    state = activations.compressed(step=0.5).state_dict()
    with pytest.raises(SpecError, match="other options"):
        activations.compressed(step=1.0).load_state_dict(state)


def test_the_report_has_the_level_that_its_score_is_of() -> None:
    torch.manual_seed(0)
    model = _without_norms()
    compression = activations.compressed(target_score=0.9, every=1)
    levels = []
    for _ in range(4):
        _train(model, compression, 1)
        report = compression.report()
        # a pass begins with the score of the one before, and then moves the level
        assert report.similarity_level == (levels[-1] if levels else None)
        levels.append(report.level)
    assert len(set(levels)) == 4
    assert f" similar at {levels[-2]:.4g}," in str(report)
    assert f"codec rms at {levels[-1]:.4g}" in str(report)
    scalars = report.scalars()
    assert scalars["activations/level"] == levels[-1]
    assert (
        scalars["activations/score_level"] == report.to_config()["similarity_level"] == levels[-2]
    )
    # a probe learns from the last pass first, and so measures the level that a checkpoint would have
    probed = compression.state_dict()["level"]
    found = compression.probe(model, _forward_and_loss(model, compression))
    report = compression.report()
    assert (report.similarity, report.similarity_level) == (found, probed)
    again = activations.compressed(target_score=0.9, every=1)
    again.load_state_dict(compression.state_dict())
    assert again.report().similarity_level == probed


def test_a_checkpoint_does_not_change_what_a_probe_measures() -> None:
    found = []
    for is_saved in (False, True):
        torch.manual_seed(0)
        model = resnet(8, 2)
        compression = activations.compressed("ans", target_score=0.9, every=1)
        _train(model, compression, 2)
        if is_saved:
            compression.state_dict()
        score = compression.probe(model, _forward_and_loss(model, compression))
        found.append((score, compression.report().level))
    assert found[0] == found[1]


def test_what_a_probe_found_is_not_steered_by_once_more() -> None:
    torch.manual_seed(0)
    model = resnet(8, 2)
    compression = activations.compressed("ans", target_score=0.9, every=1)
    _train(model, compression, 1)
    compression.probe(model, _forward_and_loss(model, compression))
    level = compression.report().level
    _train(model, compression, 1)
    # not by the prediction from before the probe, which was of another level
    assert compression.report().level == level


def test_a_state_without_the_level_of_its_score_is_taken() -> None:
    compression = activations.compressed(target_score=0.9)
    state = {**compression.state_dict(), "num_steps": 7, "level": 0.25}
    del state["similarity_level"]
    loaded = activations.compressed(target_score=0.9)
    loaded.load_state_dict(state)
    report = loaded.report()
    assert (report.num_steps, report.level, report.similarity_level) == (7, 0.25, None)
