"""The shipped costs of the H200 are those of the committed rows."""

from __future__ import annotations

import json
from statistics import median

import pytest

from tersor.codecs.costs.shipped import H200, SHIPPED
from tests.arch.source_files import REPOSITORY

ROWS = [
    json.loads(line)
    for line in (REPOSITORY / "results/2026-11-kernels-h200.jsonl").read_text().splitlines()
]
SMALL, LARGE = 64 * 2**20, 2**30
SINGLE = ("gradients", "activations", "field")
NAMES = {"ans-wide": "ans", "rows": "rows-ans", "raw": "copy"}
"""Costs whose rows have another name."""
TIGHT = {"relative": 0.001}


def median_us(cost: str, inputs: tuple[str, ...], nbytes: int, direction: str) -> float:
    def counts(row) -> bool:
        is_wide = row["spec"].get("bound") == TIGHT
        fits = is_wide == (cost == "ans-wide") or cost in ("flat", "delta")
        return row["original_nbytes"] == nbytes and row["input"] in inputs and fits

    found = [row for row in ROWS if row["codec"] == NAMES.get(cost, cost) and counts(row)]
    assert found
    return median(row[f"{direction}_s"]["p50"] * 1e6 for row in found)


def expected(cost: str, direction: str) -> tuple[float, float]:
    """Return the fixed time in us and the speed in GB/s, as the page of the shipped costs says."""
    small, large = (median_us(cost, SINGLE, nbytes, direction) for nbytes in (SMALL, LARGE))
    nbytes_per_us = (LARGE - SMALL) / (large - small)
    fixed_us = small - SMALL / nbytes_per_us
    if cost == "rows":
        (nbytes,) = {row["original_nbytes"] for row in ROWS if row["input"] == "embeddings"}
        nbytes_per_us = nbytes / (median_us(cost, ("embeddings",), nbytes, direction) - fixed_us)
    return fixed_us, nbytes_per_us / 1e3


@pytest.mark.parametrize("direction", ["encode", "decode"])
@pytest.mark.parametrize("cost", H200.codecs)
def test_the_costs_of_the_h200_follow_from_its_rows(cost, direction):
    shipped = H200.codecs[cost]
    fixed_us, gb_s = expected(cost, direction)
    assert getattr(shipped, f"{direction}_fixed_us") == round(fixed_us)
    # three digits
    assert getattr(shipped, f"{direction}_gb_s") == float(f"{gb_s:.3g}")


def test_the_rows_are_of_the_gpu_that_the_costs_are_chosen_for():
    assert {row["machine"]["gpu"] for row in ROWS} == set(SHIPPED) == {H200.device}
