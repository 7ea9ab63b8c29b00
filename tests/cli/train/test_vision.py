from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest

from tersor.workloads.models.alexnet import AlexNet
from tersor.workloads.models.resnet import ResNet
from tersor.workloads.vision import run as vision_run

SMALL = ("--batch", "4", "--steps", "2", "--eval-samples", "20", "--log-every", "1")


@pytest.fixture(autouse=True)
def _small_models(monkeypatch) -> None:
    small = partial(AlexNet, widths=(8, 8, 8, 8, 8), hidden=16)
    monkeypatch.setattr(vision_run, "AlexNet", small)
    monkeypatch.setattr(vision_run, "ResNet", partial(ResNet, blocks=(1, 1), width=4))


@pytest.mark.parametrize("model", ["alexnet", "resnet34"])
def test_a_run_reports_what_it_learned(tersor, tmp_path, model) -> None:
    done = tersor.ok("train", model, "--json", *SMALL, "--run-dir", "run").json
    assert 0 <= done["metrics"]["accuracy"] <= 1
    assert done["metrics"]["num_samples"] == 20
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["run", "train", "train", "eval", "end"]
    assert lines[0]["config"]["model"] == model
    assert lines[1]["images_per_s"] > 0


def test_people_see_a_table_and_losses(tersor) -> None:
    done = tersor.ok("train", "alexnet", *SMALL)
    for words in ("accuracy", "parameters", "images trained on"):
        assert words in done.out
    assert "step 1 of 2: loss " in done.err


def test_a_run_goes_on_from_its_checkpoint(tersor) -> None:
    options = ("train", "alexnet", *SMALL, "--run-dir", "run", "--checkpoint-every", "1")
    first = tersor.ok(*options, "--json").json
    again = tersor.ok(*options, "--json", "--resume")
    assert "resumed at step 2; nothing is left to train" in again.err
    assert again.json == first
    assert "another dtype" in tersor.refused(*options, "--resume", "--dtype", "bf16")
    longer = (*options[:-4], "--run-dir", "run", "--resume", "--steps", "3")
    assert "go on with --decay-steps 2" in tersor.refused(*longer)


def test_images_of_ones_own_are_trained_on_for_epochs(tersor, tmp_path) -> None:
    rng = np.random.default_rng(0)
    for name, count in (("data_batch_1.bin", 12), ("test_batch.bin", 5)):
        records = rng.integers(0, 256, (count, 3073), np.uint8)
        records[:, 0] %= 10
        (tmp_path / name).write_bytes(records.tobytes())
    options = ("--data", str(tmp_path), "--epochs", "2", "--batch", "4", "--side", "16")
    done = tersor.ok("train", "resnet34", *options, "--json", "--run-dir", "run").json
    assert done["metrics"]["num_samples"] == 5
    first = json.loads((tmp_path / "run/log.jsonl").read_text().splitlines()[0])
    assert first["config"]["steps"] == 6
    assert first["source"].endswith(", 12 + 5")


def test_saved_activations_are_compressed_and_shown(tersor) -> None:
    done = tersor.ok("train", "alexnet", *SMALL, "--activation-step", "0.5", "--json").json
    report = done["end"]["activations"]
    assert report["codec"] == "rms"
    assert 0 < report["held_nbytes"] < report["original_nbytes"]
    shown = tersor.ok("train", "alexnet", *SMALL, "--activations", "ans")
    assert "held for it" in shown.out
    assert "activation_ratio" in shown.err


def test_probes_are_logged_and_shown(tersor, tmp_path) -> None:
    options = (*SMALL, "--steps", "3", "--target-score", "0.9", "--activation-probe-every", "2")
    done = tersor.ok("train", "resnet34", *options, "--run-dir", "run", "--json").json
    lines = [json.loads(line) for line in (tmp_path / "run/log.jsonl").read_text().splitlines()]
    (probe,) = (line for line in lines if line["kind"] == "probe")
    assert probe.items() >= done["end"]["probe"].items()
    assert (probe["step"], probe["score_level"]) == (2, 0.5)
    shown = tersor.ok("train", "resnet34", *options)
    score = f"{probe['score']:.4f} at 0.5"
    assert (
        f"step 2 of 3: probed score {score}, level now {probe['activation_level']:.4g}" in shown.err
    )
    assert "probed before step 2" in shown.out
    assert score in shown.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--preset", "cifar"), "preset must be one of one-cycle, authors, not 'cifar'"),
        (("--data", "nowhere"), "there is no nowhere; name a folder of CIFAR-10's binary batches"),
        (("--steps", "0"), "--steps 0 is no step; give more"),
        (("--epochs", "1"), "give --steps or --epochs, not both"),
        (("--dtype", "fp8"), "dtype must be one of fp32, bf16, not 'fp8'"),
        (("--side", "64"), "AlexNet takes images of 32 pixels a side, not 64"),
        (("--eval-samples", "0"), "an evaluation needs at least one sample, not 0"),
        (("--resume",), "need --run-dir DIR"),
        (("--activations", "nothing"), "nothing"),
        (
            ("--activation-step", "1", "--target-score", "0.9"),
            "not --target-score and --activation-step",
        ),
        (("--activation-budget", "much"), "--activation-budget must be a size, as 512M or 4G"),
    ],
)
def test_a_mistake_is_one_sentence(tersor, options, words) -> None:
    assert words in tersor.refused("train", "alexnet", *SMALL, *options)
