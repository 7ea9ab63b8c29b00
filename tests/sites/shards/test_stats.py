"""What statistics say in words, and when errors are measured."""

from __future__ import annotations

from typing import Any

import pytest

from tersor.comm import Stopwatch, Volume
from tersor.sites import shards
from tersor.sites.shards.stats import CODING, LEVELS, ShardStats, Traffic
from tests.sites.ranks import returned, run_ranks
from tests.sites.shards.fsdp_rank import compressed, optimizer_of, train


def traffic(times: dict[str, float], errors: dict[str, float], **volumes: Volume) -> Traffic:
    phases = (*LEVELS, CODING)
    return Traffic(
        num_exchanges=1,
        volumes={level: volumes.get(level, Volume()) for level in LEVELS},
        times=Stopwatch(dict.fromkeys(phases, 0.0) | times, phases),
        errors=errors,
    )


def test_statistics_are_a_table_of_one_step() -> None:
    stats = ShardStats(num_steps=2, num_full_gathers=3)
    stats.weights = traffic(
        {"across": 0.5, CODING: 0.25}, {"across": 0.0125}, across=Volume(8 * 2**20, 2**20)
    )
    lines = [line.split() for line in str(stats).splitlines()]
    assert str(stats).startswith("2 steps, 3 full gathers; per step:\n")
    assert lines[1] == ["original", "MiB", "received", "MiB", "ratio", "ms", "error"]
    # halves: there were two steps
    assert lines[2] == ["weights,", "across", "4.000", "0.500", "8.00", "250.00", "1.25%"]
    assert lines[3] == ["weights,", "coding", "125.00"]
    # levels and kinds that moved nothing have no line
    assert len(lines) == 4


def test_statistics_of_no_step_are_a_title() -> None:
    assert str(ShardStats()).startswith("0 steps, 0 full gathers; per step:")


def measured(rank: int) -> dict[int, list[Any]]:
    """Return the errors that are known after each of four steps, by the steps between measurements."""
    found = {}
    for every in (0, 2):
        model, compression = compressed(error_every=every)
        optimizer, notes = optimizer_of(model), []
        for step in range(4):
            compression.stats.weights.errors.clear()
            compression.stats.gradients.errors.clear()
            train(model, rank, 1, step, optimizer)
            notes.append(
                (dict(compression.stats.weights.errors), dict(compression.stats.gradients.errors))
            )
        found[every] = notes
        shards.restore(model)
    return found


@pytest.fixture(scope="module")
def notes() -> list[dict[int, list[Any]]]:
    return returned(run_ranks(measured, 4))


def test_errors_are_measured_as_often_as_asked_for(notes) -> None:
    for found in notes:
        assert found[0] == [({}, {})] * 4
        assert [bool(gradients) for _, gradients in found[2]] == [True, False, True, False]
        # the first gather sends weights as they are
        assert [bool(weights) for weights, _ in found[2]] == [False, False, True, False]


def test_errors_are_those_of_each_level(notes) -> None:
    for found in notes:
        weights, gradients = found[2][2]
        assert gradients.keys() == {"node", "across"}
        # 8 bits are 18 times as fine as 4
        assert 0 < gradients["node"] < gradients["across"] / 5
        # nothing at all errs by 1
        assert gradients["across"] < 1
        # of weights, of which a step changes less than a tenth
        assert weights.keys() == {"across"}
        assert 0 < weights["across"] < 0.1
