"""Paired trainings, and what may be said about their difference."""

from __future__ import annotations

import json

from tersor.bench.embeddings.accuracy import pair_row, run_accuracy
from tersor.workloads.data.synthetic import SyntheticClicks
from tersor.workloads.dlrm.config import DlrmConfig
from tersor.workloads.models.dlrm import DlrmShape


def test_pairs_differ_in_compression_alone():
    def source(seed):
        return SyntheticClicks.scaled(30, num_train=512, num_test=256, seed=seed)

    shape = DlrmShape(source(0).num_rows, 4, (8,), (8,))
    config = DlrmConfig(shape=shape, batch=64, steps=8, backward="group8")
    reports = []
    [pair] = run_accuracy(
        config, source, [3], ranks=1, num_evals=2, progress=lambda *words: reports.append(words)
    )
    assert pair.first.volume("forward").ratio == pair.first.volume("backward").ratio == 1.0
    assert pair.second.volume("forward").ratio > 2
    assert pair.second.volume("backward").ratio > 2
    assert abs(pair.change("auc")) < 0.1
    assert pair.change("logloss") != 0
    line = json.loads(json.dumps(pair_row(pair)))
    assert (line["source"], line["ranks"]) == (source(3).name, 1)
    assert line["seed"] == line["config"]["seed"] == 3
    assert line["config"]["bounds"]["tight"] == list(range(26))
    assert [point[0] for point in line["compressed"]["curve"]] == [4, 8]
    assert len(line["compressed"]["tables"]) == 26
    assert reports[-1][:2] == (16, 16)
