"""Trainings on images resume exactly, learn, and take the same steps on any number of ranks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tersor.errors import SpecError
from tersor.workloads.classification import CLASS_METRICS
from tersor.workloads.data.images import training_batch
from tersor.workloads.data.synthetic_images import SyntheticImages
from tersor.workloads.models.alexnet import AlexNet
from tersor.workloads.models.resnet import ResNet
from tersor.workloads.training.activations import ActivationOptions
from tersor.workloads.training.checkpoint import resume, save_checkpoint
from tersor.workloads.training.judgement import Judgement, Pair
from tersor.workloads.training.log import RunLog
from tersor.workloads.training.loop import Schedule, train
from tersor.workloads.vision import PRESETS, VisionConfig, VisionRun
from tersor.workloads.vision import run as vision_run
from tests.checks import assert_bits_equal
from tests.sites.ranks import returned, run_ranks

SOURCE = SyntheticImages(num_train=1024, num_test=200)


def make_small(patch: pytest.MonkeyPatch) -> None:
    """Let the models have a small part of their weights."""
    small = partial(AlexNet, widths=(64, 96, 96, 64, 64), hidden=256)
    patch.setattr(vision_run, "AlexNet", small)
    patch.setattr(vision_run, "ResNet", partial(ResNet, blocks=(1, 2), width=8))


@pytest.fixture(autouse=True)
def _small_models(monkeypatch) -> None:
    make_small(monkeypatch)


def config(model: str = "alexnet", preset: str = "one-cycle", **options: Any) -> VisionConfig:
    return VisionConfig.of(model, preset, **{"batch": 8, "steps": 6, **options})


def taken(run: VisionRun, num_steps: int) -> VisionRun:
    for _ in range(num_steps):
        run.step()
    return run


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_resumed_alexnet_takes_the_same_steps(tmp_path, dtype) -> None:
    whole = taken(VisionRun(config(dtype=dtype), SOURCE), 6)
    save_checkpoint(taken(VisionRun(config(dtype=dtype), SOURCE), 3), tmp_path)
    second = VisionRun(config(dtype=dtype), SOURCE)
    assert resume(second, tmp_path) == 3
    taken(second, 3)
    assert second.state().keys() == whole.state().keys()
    for name, value in whole.state().items():
        assert_bits_equal(second.state()[name], value)


def test_a_resumed_resnet_takes_the_same_steps() -> None:
    options = {"model": "resnet34", "preset": "cifar", "batch": 2, "side": 16}
    first = taken(VisionRun(config(**options), SOURCE), 1)
    second = VisionRun(config(**options), SOURCE)
    second.load_state({name: x.clone() for name, x in first.state().items()})
    assert first.step() == second.step()
    for name, value in first.state().items():
        assert_bits_equal(second.state()[name], value)


def test_an_alexnet_learns_the_made_up_images() -> None:
    run = VisionRun(config(batch=32, steps=80, learning_rate=0.01, dropout=0.0), SOURCE)
    before = run.evaluate()
    after = taken(run, 80).evaluate()
    # ten classes, all about as likely
    assert before.accuracy < 0.3
    assert after.accuracy > 0.6
    assert after.loss < 0.6 * before.loss
    assert after.num_samples == 200


def losses_of(rank: int) -> tuple[list[float], float]:
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        run = VisionRun(config(dropout=0.0), SOURCE)
        return [run.step() for _ in range(4)], run.evaluate(150).loss


def test_two_ranks_take_the_steps_of_one() -> None:
    losses, loss = losses_of(0)
    found = returned(run_ranks(losses_of, 2))
    # float32 sums in another order, over four steps
    np.testing.assert_allclose(np.mean([one[0] for one in found], axis=0), losses, rtol=1e-3)
    assert [one[1] for one in found] == pytest.approx([loss] * 2, rel=1e-3)
    assert found[0][1] == found[1][1]


def statistics_of(rank: int) -> torch.Tensor:
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        run = VisionRun(config("resnet34", "cifar", batch=4, side=8), SOURCE)
    run.step()
    return torch.cat([x.view(-1) for x in run.model.buffers() if x.is_floating_point()])


def test_running_statistics_are_the_same_on_all_ranks() -> None:
    first, second = returned(run_ranks(statistics_of, 2))
    assert_bits_equal(first, second)


def states_with_activations(rank: int, folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Return states after three steps, with exact and lossy codecs, and of a run that was stopped before the last."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)

        def made(activations: ActivationOptions | None) -> VisionRun:
            options = {"batch": 8, "side": 16, "activations": activations}
            return VisionRun(config("resnet34", "cifar", **options), SOURCE)

        steered = ActivationOptions(target_score=0.8)
        for name, activations in (
            ("none", None), ("raw", ActivationOptions(codec="raw")), ("steered", steered),
        ):  # fmt: skip
            found[name] = taken(made(activations), 3).state()
        save_checkpoint(taken(made(steered), 2), folder)
        again = made(steered)
        assert resume(again, folder) == 2
        found["resumed"] = taken(again, 1).state()
    return found


def test_ranks_compress_activations(tmp_path) -> None:
    ranks = returned(run_ranks(states_with_activations, 2, tmp_path))
    for one in ranks:
        for name, value in one["none"].items():
            assert_bits_equal(one["raw"][name], value)
        assert one["steered"].keys() == one["resumed"].keys()
        for name, value in one["steered"].items():
            assert_bits_equal(one["resumed"][name], value)
    first, second = (one["steered"] for one in ranks)
    # each rank has a level of its own, and the weights of all
    assert not torch.equal(first.pop("activations"), second.pop("activations"))
    for name, value in first.items():
        assert_bits_equal(second[name], value)
    assert any(not torch.equal(ranks[0]["none"][name], value) for name, value in first.items())


def test_an_epoch_has_every_image_once_and_the_next_another_order() -> None:
    labels = torch.from_numpy(SOURCE.labels("train"))
    epochs = [training_batch(SOURCE, 0, first, 1024, 1024, augment=False) for first in (0, 1024)]
    for epoch in epochs:
        assert torch.equal(epoch.labels.sort().values, labels.sort().values)
        assert not epoch.flips.any()
        assert not epoch.shifts.any()
    assert not torch.equal(epochs[0].labels, epochs[1].labels)


def test_an_image_and_its_change_depend_on_its_number_alone() -> None:
    whole = training_batch(SOURCE, 3, 512, 64, 1024, augment=True)
    part = training_batch(SOURCE, 3, 544, 32, 1024, augment=True)
    assert torch.equal(whole.images[32:], part.images)
    assert torch.equal(whole.flips[32:], part.flips)
    assert torch.equal(whole.shifts[32:], part.shifts)
    assert set(whole.shifts.flatten().tolist()) == set(range(-3, 4))
    assert 16 < int(whole.flips.sum()) < 48


def test_a_pair_of_trainings_is_judged_by_accuracy() -> None:
    outcomes = []
    for rate in (0.1, 0.2):
        options = {"batch": 4, "steps": 1, "side": 8, "learning_rate": rate}
        run = taken(VisionRun(config("resnet34", "cifar", **options), SOURCE), 1)
        outcomes.append(run.outcome(str(rate), run.evaluate(50), []))
    pair = Pair(0, *outcomes)
    for metric in CLASS_METRICS:
        found = Judgement.of(metric, [pair])
        assert (
            found.change.mean == outcomes[1].metrics[metric.name] - outcomes[0].metrics[metric.name]
        )


def test_a_line_tells_loss_and_speed() -> None:
    run = VisionRun(config(steps=1), SOURCE)
    with RunLog(None) as log:
        train(run, Schedule(log_every=1), log)
    names = {"loss", "step_s", "learning_rate", "images_per_s"}
    assert set(log.lines[0]) == {"kind", "step", *names}
    assert log.lines[1]["num_samples"] == 200


def test_presets_are_the_recipes_of_the_page() -> None:
    authors = config(preset="authors", batch=20)
    assert (authors.learning_rate, authors.weight_decay, authors.augment) == (0.01, 1e-4, False)
    assert authors.rate().at(0) == authors.rate().at(5) == 0.01
    cycle = config(steps=100, learning_rate=1.0).rate()
    assert cycle.at(29) == 1.0
    assert cycle.at(0) == pytest.approx(1 / 30)
    assert cycle.at(100) == 0.0
    imagenet = config("resnet34", "imagenet")
    assert (imagenet.side, imagenet.stem) == (224, "imagenet")
    assert PRESETS["resnet34"]["imagenet"].batch == 256


def test_a_longer_run_is_told_how_to_keep_its_learning_rate() -> None:
    saved = config().to_config()
    assert "go on with --decay-steps 6" in str(config(steps=9).difference(saved))
    assert config(steps=9, decay_steps=6).difference(saved) is None
    constant = config(preset="authors").to_config()
    assert config(preset="authors", steps=9).difference(constant) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "vgg"}, "model must be one of alexnet, resnet34, not 'vgg'"),
        ({"preset": "cifar"}, "preset must be one of one-cycle, authors, not 'cifar'"),
        ({"side": 64}, "AlexNet takes images of 32 pixels a side, not 64"),
        ({"dtype": "fp16"}, "dtype must be one of fp32, bf16, not 'fp16'"),
        ({"dropout": 1.0}, "a dropout from 0 to below 1, not 10 and 1.0"),
        ({"weight_decay": -1}, "neither steps nor a weight decay are below 0"),
        ({"preset": "authors", "decay_steps": 3}, "a constant learning rate has no decay_steps"),
        ({"batch": 2000}, "has 1024 training images, fewer than a batch of 2000"),
        ({"model": "resnet34", "preset": "imagenet", "side": 16}, "at least 32 pixels a side"),
    ],
)
def test_what_cannot_be_trained_is_refused(options, words) -> None:
    with pytest.raises(SpecError, match=words):
        VisionRun(config(**options), SOURCE)


def test_an_evaluation_needs_images() -> None:
    with pytest.raises(SpecError, match="at least one image, not 0"):
        VisionRun(config(), SOURCE).evaluate(0)
