from __future__ import annotations

import pytest
from msgspec import structs
from rich.console import Console

from tersor.bench.core.tables import goals_table
from tersor.bench.core.timing import Percentiles
from tersor.bench.kernels.tables import kernels_table
from tersor.bench.sites import evaluate_goals
from tests.bench.core.test_rows import make_row


def timed(codec, encode_s, decode_s=1e-6, *, peer=False, bound=0.03, **changes):
    return make_row(
        codec=codec,
        peer=peer,
        spec={"bound": {"relative": bound}},
        encode_s=Percentiles(encode_s, encode_s, encode_s),
        decode_s=Percentiles(decode_s, decode_s, decode_s),
        memcpy_s=Percentiles(1e-6, 1e-6, 1e-6),
        **changes,
    )


def goal(rows, start):
    (found,) = [one for one in evaluate_goals(rows) if one.name.startswith(start)]
    return found


def test_nothing_is_met_without_rows():
    assert {one.met for one in evaluate_goals([])} == {None}


@pytest.mark.parametrize(("encode_s", "met"), [(2.49e-6, True), (2.51e-6, False)])
def test_flat_is_judged_against_the_memcpy_of_its_own_rounds(encode_s, met):
    assert goal([timed("flat", encode_s)], "flat encodes at").met is met


def test_the_worst_input_decides():
    rows = [timed("flat", 1e-6), timed("flat", 4e-6, input="field")]
    found = goal(rows, "flat encodes at")
    assert found.measured == pytest.approx(0.25)
    assert found.met is False
    assert "field" in found.detail


def test_speed_against_a_peer_needs_the_same_input_and_bound():
    rows = [timed("flat", 1e-6), timed("sz3", 30e-6, peer=True, bound=0.01)]
    assert goal(rows, "flat encodes 20 x SZ3").met is None
    rows.append(timed("sz3", 30e-6, peer=True))
    assert goal(rows, "flat encodes 20 x SZ3").measured == pytest.approx(30)


def test_our_zstd_is_not_mistaken_for_the_peer():
    ours = timed("rows", 1e-6, input="embeddings", encoded_nbytes=100)
    rows = [ours, timed("zstd", 1e-6, input="embeddings", encoded_nbytes=400)]
    assert goal(rows, "rows: ratio above zstd").met is None
    rows.append(timed("zstd", 1e-6, input="embeddings", encoded_nbytes=200, peer=True))
    assert goal(rows, "rows: ratio above zstd").measured == pytest.approx(2.0)


@pytest.mark.parametrize(("encoded_nbytes", "met"), [(505, True), (506, False)])
def test_the_entropy_goal_allows_one_percent(encoded_nbytes, met):
    # 1000 values of 4 bits are 500 bytes
    row = timed("ans", 1e-6, encoded_nbytes=encoded_nbytes, entropy_bits=4.0)
    assert goal([row], "ans").met is met


def test_two_threads_are_compared_over_all_inputs_together():
    rows = [
        timed("flat", 3e-6, 1e-6),
        timed("flat", 1.5e-6, 0.5e-6, threads=2),
        timed("flat", 3e-6, 1e-6, input="field"),
        timed("flat", 3e-6, 1e-6, input="field", threads=2),
    ]
    assert goal(rows, "flat: two threads").measured == pytest.approx(8 / 6)


def test_memory_is_judged_by_the_memory_suite_and_by_large_files_only():
    row = structs.replace(
        make_row(), suite="memory", original_nbytes=2**32, peak_extra_nbytes=2**30
    )
    assert goal([row], "4 GiB").met is True
    assert goal([structs.replace(row, peak_extra_nbytes=2**30 + 1)], "4 GiB").met is False
    small = structs.replace(row, original_nbytes=2**24, peak_extra_nbytes=2**25)
    assert goal([small], "4 GiB").met is None


def test_of_two_builds_the_later_one_is_judged_by_its_own_peer():
    old = [timed("flat", 4e-6), timed("sz3", 8e-6, peer=True)]
    new = [timed("flat", 1e-6), timed("sz3", 30e-6, peer=True)]
    new = [structs.replace(row, git_commit="later") for row in new]
    found = goal([*old, *new], "flat encodes 20 x SZ3")
    assert found.measured == pytest.approx(30)
    assert found.detail.startswith("worst of 1")
    # a peer of another build was not measured together with it
    assert goal([old[1], new[0]], "flat encodes 20 x SZ3").measured is None


def rendered(table):
    console = Console(width=200, no_color=True)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_the_table_shows_quotients_and_marks_samples_and_broken_bounds():
    rows = [
        timed("flat", 2e-6, 1e-6),
        timed("sz3", 20e-6, peer=True, sampled_fraction=0.5, worst_error=0.6),
    ]
    flat, sz3 = [line for line in rendered(kernels_table(rows)).splitlines() if "gradients" in line]
    cells = [cell.strip() for cell in flat.strip("│ ").split("│")]
    assert cells == [
        "gradients",
        "flat",
        "0.03",
        "1",
        "8.00",
        "2.00",
        "4.00",
        "0.50",
        "1.00",
        "20.0",
    ]
    assert "~0.10" in sz3
    assert "0.03!" in sz3


def test_the_goal_table_says_met_missed_or_not_measured():
    text = rendered(goals_table(evaluate_goals([timed("flat", 1e-6, 9e-6)])))
    for verdict in ("met", "missed", "not measured"):
        assert verdict in text
