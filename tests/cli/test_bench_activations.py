from __future__ import annotations

import pytest

from tersor.bench.activations import accuracy, suite
from tersor.bench.core.outcome import SuiteOutcome
from tersor.bench.core.row_file import read_rows
from tests.bench.activations.made import step_rows, training_rows


def _stand_in(monkeypatch, module, name, rows):
    configs = []

    def run(config, *, done, on_row, on_note, **_):
        configs.append(config)
        outcome = SuiteOutcome(done, on_row, on_note)
        for row in rows:
            if row.key not in done:
                outcome.add(row)
        return outcome

    monkeypatch.setattr(module, name, run)
    return configs


@pytest.fixture
def steps(monkeypatch):
    """Return what the suite is asked for; it gives made-up rows and measures nothing."""
    return _stand_in(monkeypatch, suite, "run_activations", step_rows())


@pytest.fixture
def trainings(monkeypatch):
    """Return what is to be trained; nothing is."""
    return _stand_in(monkeypatch, accuracy, "run_accuracy", training_rows())


def test_options_reach_the_suite_and_rows_the_file(tersor, steps):
    words = ("--models", "alexnet,gpt-10M", "--batch", "6", "--warm-steps", "3", "--dtype", "bf16")
    found = tersor("bench", "activations", *words, "--contenders", "rms-1", "-o", "r.jsonl")
    assert found.code == 0
    [config] = steps
    assert [(case.model, case.batch, case.warm_steps) for case in config.cases] == [
        ("alexnet", 6, 3),
        ("gpt-10M", 6, 3),
    ]
    assert {case.dtype for case in config.cases} == {"bf16"}
    assert config.contenders == ("exact", "lossless", "rms-1")
    assert [row.codec for row in read_rows("r.jsonl")] == [row.codec for row in step_rows()]
    assert "peak 5 times lower" in found.out


def test_a_resumed_file_gets_no_row_twice(tersor, steps):
    for words in ((), ("--resume",)):
        assert tersor("bench", "activations", "-o", "r.jsonl", *words).code == 0
    assert len(read_rows("r.jsonl")) == len(step_rows())


def test_smoke_is_one_tiny_model_and_judges_nothing(tersor, steps):
    found = tersor("bench", "activations", "--smoke")
    [config] = steps
    assert [(case.is_smoke, case.batch) for case in config.cases] == [(True, 1)]
    assert config.rounds == 1
    assert "too little to judge" in found.err


@pytest.mark.parametrize(
    "words",
    [
        ("--models", "vgg"),
        ("--contenders", "zip"),
        ("--dtype", "fp64"),
        ("--batch", "-1"),
        ("--rounds", "0"),
        ("--device", "tpu"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(tersor, steps, words):
    tersor.refused("bench", "activations", *words)
    assert not steps


def test_options_of_trainings_reach_them(tersor, trainings):
    words = (
        "--steps",
        "9",
        "--batch",
        "32",
        "--lr",
        "0.5",
        "--seeds",
        "2",
        "--evals",
        "3",
        "--jobs",
        "4",
    )
    found = tersor(
        "bench",
        "accuracy",
        "activations",
        "alexnet",
        *words,
        "--settings",
        "score-0.7",
        "-o",
        "r.jsonl",
    )
    assert found.code == 0
    [config] = trainings
    training = config.recipe.training
    assert (training.steps, training.batch, training.learning_rate) == (9, 32, 0.5)
    assert (config.settings, config.seeds) == (("exact", "score-0.7"), (0, 1))
    assert (config.num_evals, config.jobs) == (3, 4)
    assert len(read_rows("r.jsonl")) == len(training_rows())
    assert "within 0.5 points" in found.out


def test_a_graph_is_trained_in_the_form_asked_for(tersor, trainings):
    for words in ((), ("--form", "matmul")):
        assert tersor("bench", "accuracy", "activations", "gcn", *words).code == 0
    assert [config.recipe.training.form for config in trainings] == ["csr", "matmul"]


@pytest.mark.parametrize(
    "words",
    [
        ("vgg",),
        ("alexnet", "--seeds", "0"),
        ("alexnet", "--steps", "0"),
        ("alexnet", "--settings", "checkpoint"),
        ("alexnet", "--data", "nowhere"),
        ("gcn", "--dtype", "bf16"),
        ("gcn", "--form", "dense"),
        ("alexnet", "--form", "csr"),
    ],
)
def test_what_cannot_be_trained_is_one_sentence(tersor, trainings, words):
    tersor.refused("bench", "accuracy", "activations", *words)
    assert not trainings
