"""The made-up click log: the same everywhere, made at any place, learnable, with a known best AUC."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xxhash

from tersor.errors import SpecError
from tersor.workloads.data import SyntheticClicks, open_clicks
from tersor.workloads.data.clicks import KAGGLE_ROWS
from tersor.workloads.metrics import auc
from tests.checks import assert_rejects

SMALL = SyntheticClicks.scaled(1000, num_train=1 << 17, num_test=1 << 15)


def digest(*tensors: torch.Tensor) -> str:
    hasher = xxhash.xxh3_64()
    for tensor in tensors:
        hasher.update(tensor.numpy().tobytes())
    return hasher.hexdigest()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (SyntheticClicks(), "7664b474591d2551"),
        (SyntheticClicks(seed=-7), "3dd1d3208490e7e8"),
        (SyntheticClicks(num_rows=(5, 45_833_188), seed=2**70), "ffe8b41500e05525"),
    ],
)
def test_every_machine_makes_the_same_log(source, expected):
    train, test = source.read("train", 5000, 3000), source.read("test", 0, 3000)
    chances = source.probabilities("train", 5000, 3000)
    assert digest(train.dense, train.ids, train.labels, test.ids, test.labels, chances) == expected


def test_any_place_equals_the_whole(generator):
    every = SMALL.read("train", 0, 10_000)
    chances = SMALL.probabilities("train", 0, 10_000)
    for _ in range(20):
        start, end = sorted(torch.randint(0, 10_001, (2,), generator=generator).tolist())
        part = SMALL.read("train", start, end - start)
        assert torch.equal(part.dense, every.dense[start:end])
        assert torch.equal(part.ids, every.ids[start:end])
        assert torch.equal(part.labels, every.labels[start:end])
        assert torch.equal(SMALL.probabilities("train", start, end - start), chances[start:end])


def test_more_samples_do_not_change_those_there_were():
    longer = SyntheticClicks.scaled(1000, num_train=1 << 20, num_test=1 << 15)
    assert torch.equal(longer.read("train", 9000, 100).ids, SMALL.read("train", 9000, 100).ids)


def test_splits_and_seeds_have_samples_of_their_own():
    other = SyntheticClicks.scaled(1000, seed=1)
    batches = [
        SMALL.read("train", 0, 1000),
        SMALL.read("test", 0, 1000),
        other.read("train", 0, 1000),
    ]
    for first in range(3):
        for second in range(first):
            same = (batches[first].dense == batches[second].dense).float().mean()
            assert float(same) < 0.01


def test_batches_are_as_models_take_them():
    batch = SyntheticClicks().read("train", 3, 50)
    assert batch.dense.shape == (50, 13)
    assert batch.ids.shape == (50, 26)
    assert batch.labels.shape == (50,)
    assert (batch.dense.dtype, batch.ids.dtype, batch.labels.dtype) == (
        torch.float32,
        torch.int64,
        torch.float32,
    )


def test_dense_features_are_near_normal():
    dense = SMALL.read("train", 0, 1 << 15).dense.double()
    # five standard errors of a mean and of a variance over 32,768 samples
    assert float(dense.mean(0).abs().max()) < 0.03
    assert float((dense.var(0) - 1).abs().max()) < 0.04
    assert float(dense.abs().max()) < 4


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_sample_in_four_is_clicked_and_the_best_auc_is_about_0_80(seed):
    source = SyntheticClicks(seed=seed)
    labels = source.read("train", 0, 1 << 16).labels
    # the rate is set on 8,192 other samples: 0.005 standard error there, 0.002 here
    assert 0.225 < float(labels.mean()) < 0.275
    assert 0.78 < source.best_auc(1 << 15) < 0.83


def test_labels_follow_the_true_probabilities():
    labels = SMALL.read("train", 0, 1 << 17).labels.double()
    chances = SMALL.probabilities("train", 0, 1 << 17)
    order = chances.argsort()
    for part in order.chunk(20):
        expected = chances[part]
        error = float(labels[part].sum() - expected.sum())
        deviation = float((expected * (1 - expected)).sum().sqrt())
        # 4.5 standard deviations; the samples are fixed, so that it holds or not once and for all
        assert abs(error) < 4.5 * deviation


def test_best_auc_is_what_the_true_probabilities_reach():
    labels = SMALL.read("test", 0, 1 << 15).labels.double()
    chances = SMALL.probabilities("test", 0, 1 << 15)
    # the standard error of an AUC over 32,768 samples is below 0.003
    assert abs(auc(chances, labels) - SMALL.best_auc()) < 0.01


def test_common_ids_can_be_learned_by_counting():
    """Log-odds per id, added up: what the simplest model learns from 131,072 samples."""
    train, test = SMALL.read("train", 0, 1 << 17), SMALL.read("test", 0, 1 << 15)
    scores = torch.zeros(len(test), dtype=torch.float64)
    rate = float(train.labels.mean())
    for table, rows in enumerate(SMALL.num_rows):
        seen = torch.zeros(rows, dtype=torch.float64)
        clicks = torch.zeros(rows, dtype=torch.float64)
        seen.index_add_(0, train.ids[:, table], torch.ones(len(train), dtype=torch.float64))
        clicks.index_add_(0, train.ids[:, table], train.labels.double())
        chance = (clicks + 20 * rate) / (seen + 20)
        scores += torch.logit(chance)[test.ids[:, table]]
    found = auc(scores, test.labels)
    assert 0.70 < found < SMALL.best_auc()


def test_ids_follow_the_zipf_law_over_their_rows():
    num_samples = 1 << 17
    source = SyntheticClicks()
    ids = source.read("train", 0, num_samples).ids.numpy()
    assert (ids >= 0).all()
    assert (ids < np.array(KAGGLE_ROWS)).all()
    for table, rows in ((8, 3), (5, 24), (24, 105), (2, KAGGLE_ROWS[2])):
        ranks = np.arange(1, min(rows, 50) + 2, dtype=np.float64)
        weights = ranks ** (-1 / 8)
        law = (weights[:-1] - weights[1:]) / (1 - (rows + 1.0) ** (-1 / 8))
        found = np.bincount(ids[:, table], minlength=51)[: len(law)] / num_samples
        # cells of 1/4096 cut the law on both sides; five standard errors of the draw
        assert (np.abs(found - law) < 1 / 4096 + 5 * np.sqrt(law / num_samples)).all()


def test_every_row_of_a_small_table_and_the_last_of_a_large_one_can_be_drawn():
    source = SyntheticClicks(num_rows=(1, 2, 300, 5_000_000))
    ids = source.read("train", 0, 1 << 17).ids
    for table, rows in enumerate((1, 2, 300)):
        assert len(ids[:, table].unique()) == rows
    assert int(ids[:, 3].max()) > 4_900_000


def test_rows_that_cannot_be_are_refused():
    for call in (
        lambda: SyntheticClicks(num_rows=()),
        lambda: SyntheticClicks(num_rows=(3, 0)),
        lambda: SyntheticClicks(num_train=0),
        lambda: SyntheticClicks(num_test=0),
        lambda: SyntheticClicks.scaled(0),
        lambda: SMALL.read("train", SMALL.num_train, 1),
        lambda: SMALL.read("test", -1, 1),
        lambda: SMALL.read("valid", 0, 1),
        lambda: open_clicks("synthetic", rows=3),
    ):
        assert_rejects(call, SpecError)


def test_it_is_opened_by_name():
    assert open_clicks("synthetic", seed=4) == SyntheticClicks(seed=4)
    assert open_clicks("synthetic", max_rows=10, num_test=7) == SyntheticClicks.scaled(
        10, num_test=7
    )
