"""What is wrong with options of saved activations is said with the names that the user typed."""

from __future__ import annotations

import re

import pytest

from tersor import TersorError
from tersor.cli.train.activation_options import activation_options
from tersor.workloads.training.activations import BalancedActivations

_NAMES = ("codec", "step", "bound", "score", "budget", "balance", "probe_every")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"step": 1.0, "score": 0.9},
            ("give one of --target-score, --activation-step, --activation-bound, --activation-budget, not "
            "--target-score and --activation-step"),
        ),
        ({"step": 100.0}, "--activation-step must be from 16/127 (0.126) to 8 root mean squares, not 100.0"),
        ({"bound": -1.0}, "--activation-bound must be finite and at least 0, not -1.0"),
        ({"score": 3.0}, "--target-score must be above 0 and below 1, not 3.0; 0.95 is a good one"),
        ({"budget": "0"}, "--activation-budget must be a whole number of bytes above 0, not 0"),
        ({"budget": "much"}, "--activation-budget must be a size, as 512M or 4G, not 'much'"),
        ({"codec": "rms", "bound": 0.1}, "--activations rms takes a --activation-step, not a --activation-bound"),
        ({"codec": "group4", "bound": 0.1}, "--activations group4 takes no --activation-bound; leave it out"),
        ({"codec": "group4", "step": 1.0}, "--activations group4 has no --activation-step; --activations rms has"),
        (
            {"codec": "group4", "score": 0.9},
            ("--activations group4 has neither --activation-step nor --activation-bound to steer; leave "
            "--target-score out, or take --activations rms"),
        ),
        ({"codec": "auto", "bound": float("nan")}, "--activation-bound"),
        ({"balance": "layer"}, "--activation-balance must be 'kind' or 'tensor', not 'layer'"),
        (
            {"balance": "kind", "bound": 0.1},
            ("only --activation-step, --target-score or --activation-budget can be balanced; leave "
            "--activation-balance out, or --activation-bound and the codec"),
        ),
        (
            {"score": 0.9, "probe_every": -1},
            "--activation-probe-every must be a whole number of steps, or 0 for no probe, not -1",
        ),
        ({"codec": "nothing"}, "--activations: unknown codec 'nothing'; known are "),
    ],
)  # fmt: skip
def test_a_mistake_names_the_options_that_were_typed(given, sentence) -> None:
    with pytest.raises(TersorError, match=re.escape(sentence)) as caught:
        activation_options(*(given.get(name) for name in _NAMES))
    assert not re.search(
        r"(?<![\w-])(step|bound|target_score|probe_every|budget_\w+)\b", str(caught.value)
    )
    assert type(caught.value) is not TersorError


def test_options_that_fit_together_are_taken() -> None:
    assert activation_options(None, None, None, None, None, None, None) is None
    found = activation_options("auto", 0.5, None, None, None, None, None)
    assert found is not None
    assert (found.codec, found.step, found.probe_every) == ("auto", 0.5, 0)
    balanced = activation_options(None, None, None, 0.9, None, "tensor", 10)
    assert isinstance(balanced, BalancedActivations)
    assert (balanced.target_score, balanced.parts, balanced.probe_every) == (0.9, "tensor", 10)


def test_a_target_score_is_probed_unless_that_is_refused() -> None:
    probed = activation_options(None, None, None, 0.9, None, None, None)
    assert probed is not None
    assert probed.probe_every == 50
    unprobed = activation_options(None, None, None, 0.9, None, None, 0)
    assert unprobed is not None
    assert unprobed.probe_every == 0
