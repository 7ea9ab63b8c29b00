"""Figures that the prose of the pages claims are those of committed rows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tersor.bench.activations.trainings import (
    activation_trainings,
    all_ratio,
    mean_ratio,
    mean_score,
    named,
)
from tersor.bench.core.row_file import read_rows
from tersor.bench.core.rows import ExchangeRow
from tersor.bench.embeddings.report.exchanges import speedups
from tersor.bench.shards.losses import loss_cells
from tersor.bench.shards.tables import SHARD_COLUMNS, shard_cells
from tersor.workloads.training.judgement import Interval
from tests.arch.source_files import REPOSITORY

RESULTS = REPOSITORY / "results"


def _rows(name: str) -> list:
    return read_rows(RESULTS / f"2026-11-{name}.jsonl")


def lookups_at_1_gbit() -> str:
    rows = _rows("embeddings-network")
    gains = {what: dict(lines["rows"])[1.0] for (what, _, _, batch), lines in speedups(rows).items()
             if batch == 16384}  # fmt: skip
    (forward,) = (
        row for row in rows
        if isinstance(row, ExchangeRow) and row.exchange.batch == 16384 and row.codec == "rows"
        and row.exchange.direction == "forward"
    )  # fmt: skip
    ratio = forward.original_nbytes / forward.encoded_nbytes
    return (
        f"arrive {gains['forward']:.1f} times faster than as float32 and {ratio:.0f} times smaller; "
        f"a whole step is {gains['step']:.1f} times faster"
    )


def auc_on_criteo() -> str:
    lines = (RESULTS / "2026-11-accuracy-criteo.jsonl").read_text(encoding="utf-8").splitlines()
    pairs = [json.loads(line) for line in lines]
    change = Interval.of(
        [pair["compressed"]["metrics"]["auc"] - pair["uncompressed"]["metrics"]["auc"] for pair in pairs]
    )  # fmt: skip
    return f"changes by {change.mean:+.5f} ± {change.half_width:.5f}"


def shards_at_1_gbit() -> str:
    lines = [
        line for line in shard_cells(_rows("shards-network")) if line[:2] == ["1gbit", "fsdp-4-bit"]
    ]
    gain = float(lines[0][SHARD_COLUMNS.index("x fp32")])
    changes = [float(line[4]) for line in loss_cells(_rows("accuracy-gpt")) if line[1] == "both"]
    least, most = min(changes), max(changes)
    return f"exchanges {gain:.1f} times faster than float32 over 1 Gbit/s; loss {least:.1f} to {most:.1f} % above exact"


def _training(model: str, setting: str) -> tuple[float, Interval]:
    (place,) = (
        one for one in activation_trainings(_rows("accuracy-activations-h200"))
        # the pages name the recipe of our own, not that of CompressNN's authors, whose steps take 20 images
        if one.model == model and setting in one.rows and not named(one).endswith(" of 20")
    )  # fmt: skip
    change = place.accuracy_change(setting) or place.change(setting)
    ratio = mean_ratio(place, setting, all_ratio)
    assert change is not None
    assert ratio is not None
    return ratio, change


def alexnet() -> str:
    ratio, change = _training("alexnet", "rms-1")
    return f"{ratio:.1f} times less, with an accuracy change of {change.mean:+.2f} ± {change.half_width:.2f} points"


def balanced_gpt() -> str:
    (place,) = activation_trainings(_rows("accuracy-balanced-gpt"))
    ratios = [mean_ratio(place, one, all_ratio) for one in ("balanced-1", "rms-1")]
    scores = [mean_score(place, one) for one in ("balanced-1", "rms-1")]
    assert None not in [*ratios, *scores]
    return f"held {100 * (1 - ratios[1] / ratios[0]):.0f} % less at a higher mean score, {scores[0]:.3f} instead of {scores[1]:.3f}"


def test_the_page_of_activations_claims_the_gain_of_a_balance() -> None:
    assert balanced_gpt() in _words(REPOSITORY / "docs" / "activations.md")


def gpt_of_10_million() -> str:
    ratio, change = _training("gpt-10M", "rms-0.25")
    return f"{ratio:.1f} times less, with a loss change of {change.mean:+.2f} ± {change.half_width:.2f} %"


@pytest.mark.parametrize(
    ("model", "setting", "words"),
    [
        ("alexnet", "rms-1", "{:.1f} times fewer | accuracy changes by {:+.2f} ± {:.2f} points"),
        ("resnet34", "rms-0.8", "{:.1f} times fewer | accuracy changes by {:+.2f} ± {:.2f} points"),
        ("gpt-10M", "rms-0.25", "{:.1f} times fewer | loss changes by {:+.2f} ± {:.2f} %"),
    ],
)
def test_the_page_of_activations_claims_what_rows_say(model, setting, words) -> None:
    ratio, change = _training(model, setting)
    claim = words.format(ratio, change.mean, change.half_width)
    assert claim in _words(REPOSITORY / "docs" / "activations.md")


@pytest.mark.parametrize(
    "claim", [lookups_at_1_gbit, auc_on_criteo, shards_at_1_gbit, alexnet, gpt_of_10_million]
)
def test_the_readme_claims_what_rows_say(claim: Callable[[], str]) -> None:
    assert claim() in _words(REPOSITORY / "README.md")


def _words(page: Path) -> str:
    return re.sub(r"\s+", " ", page.read_text(encoding="utf-8"))
