from __future__ import annotations

import pytest

from tersor.bench.core.outcome import SuiteOutcome
from tersor.bench.core.row_file import RowFile, read_rows
from tersor.bench.core.rows import ShardRow
from tersor.bench.shards import suite
from tests.bench.shards.made import made_rows


@pytest.fixture
def asked(monkeypatch):
    """Return what the suite is asked for; it gives made-up rows and measures nothing."""
    configs = []

    def run(config, *, done, on_row, on_note, on_case):
        configs.append(config)
        outcome = SuiteOutcome(done, on_row, on_note)
        for row in made_rows():
            if row.key not in done:
                outcome.add(row)
        return outcome

    monkeypatch.setattr(suite, "run_shards", run)
    return configs


def test_options_reach_the_suite_and_rows_the_file(tersor, asked):
    words = (
        "--ranks",
        "6",
        "--ranks-per-node",
        "3",
        "--bandwidth",
        "1gbit,100mbit",
        "--preset",
        "2M",
    )
    found = tersor(
        "bench", "shards", *words, "--batch", "12", "--exchanges", "ddp-4-bit", "-o", "r.jsonl"
    )
    assert found.code == 0
    [config] = asked
    assert (config.num_ranks, config.ranks_per_node, config.batch) == (6, 3, 12)
    assert [str(link) for link in config.bandwidths] == ["1gbit", "100mbit"]
    assert config.variants == ("ddp-fp32", "ddp-4-bit")
    rows = read_rows("r.jsonl")
    assert all(isinstance(row, ShardRow) and "bench shards" in row.command for row in rows)
    assert len(rows) == len(made_rows())


@pytest.mark.parametrize(
    "words",
    [("--exchanges", "zip"), ("--ranks", "1"), ("--ranks-per-node", "4"), ("--bandwidth", "fast")],
)
def test_what_cannot_be_measured_is_one_sentence(tersor, asked, words):
    found = tersor("bench", "shards", *words)
    assert found.code == 2
    assert len(found.err.strip().splitlines()) == 1
    assert not asked


def test_a_resumed_file_gets_no_row_twice(tersor, asked):
    for words in ((), ("--resume",)):
        assert tersor("bench", "shards", "-o", "r.jsonl", *words).code == 0
    assert tersor("bench", "shards", "-o", "r.jsonl").code == 2
    with RowFile("r.jsonl", resume=True) as file:
        assert len(file.rows) == len({row.key for row in file.rows})
