"""Paired trainings, and what may be said about their difference."""

from __future__ import annotations

import json
import math

import pytest

from tersor.bench.embeddings.accuracy import Interval, run_accuracy
from tersor.errors import SpecError
from tersor.workloads.data.synthetic import SyntheticClicks
from tersor.workloads.dlrm.config import DlrmConfig
from tersor.workloads.models.dlrm import DlrmShape


def test_an_interval_is_that_of_students_t():
    # mean 3, sample deviation sqrt(2.5), and 2.776 for four degrees of freedom
    found = Interval.of([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.mean == 3.0
    assert found.half_width == pytest.approx(2.776 * math.sqrt(2.5 / 5))
    assert not found.holds_zero
    assert Interval.of([-1.0, 1.5, -0.5]).holds_zero


def test_one_difference_says_nothing_and_none_is_refused():
    assert Interval.of([0.1]).half_width == math.inf
    assert Interval.of([0.1]).holds_zero
    with pytest.raises(SpecError, match="at least one"):
        Interval.of([])


def test_pairs_differ_in_compression_alone():
    def source(seed):
        return SyntheticClicks.scaled(30, num_train=512, num_test=256, seed=seed)

    shape = DlrmShape(source(0).num_rows, 4, (8,), (8,))
    config = DlrmConfig(shape=shape, batch=64, steps=8, backward="group8")
    told = []
    [pair] = run_accuracy(
        config, source, [3], ranks=1, num_evals=2, progress=lambda *words: told.append(words)
    )
    assert pair.plain.volume("forward").ratio == pair.plain.volume("backward").ratio == 1.0
    assert pair.small.volume("forward").ratio > 2
    assert pair.small.volume("backward").ratio > 2
    assert abs(pair.auc_change) < 0.1
    assert pair.logloss_change != 0
    line = json.loads(json.dumps(pair.to_config(source(3), 1)))
    assert line["seed"] == line["config"]["seed"] == 3
    assert line["config"]["bounds"]["tight"] == list(range(26))
    assert [point[0] for point in line["compressed"]["curve"]] == [4, 8]
    assert len(line["compressed"]["tables"]) == 26
    assert told[-1][:2] == (16, 16)
