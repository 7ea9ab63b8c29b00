from __future__ import annotations

import json

import pytest
import torch

from tersor.comm import PHASES, Stopwatch
from tersor.errors import SpecError
from tersor.kernels.runtime import compile_notice
from tersor.sites.embeddings import Exchange, ExchangeStats, Volume
from tests.sites.ranks import returned, run_ranks


def counted() -> ExchangeStats:
    """Return statistics of three exchanges."""
    exchange = Exchange([0, 0], [4, 8], codec="raw")
    for _ in range(3):
        rows = [torch.ones(6, 4, requires_grad=True), torch.ones(6, 8, requires_grad=True)]
        sum(y.sum() for y in exchange(rows)).backward()
    return exchange.stats


def test_statistics_go_on_from_their_json_form():
    stats = counted()
    again = ExchangeStats.from_dict(json.loads(json.dumps(stats.to_dict())))
    assert again.to_dict() == stats.to_dict()
    with again.forward_times.phase("encode", torch.device("cpu")):
        again.tables[1].add(Volume(1, 1))
    assert again.forward.original_nbytes == stats.forward.original_nbytes + 1
    assert again.forward_times.read()["encode"] > stats.forward_times.read()["encode"]


@pytest.mark.parametrize(
    "change",
    [
        {"num_exchanges": None},
        {"num_exchanges": -1},
        {"tables": []},
        {"tables": {"0": [1]}},
        {"tables": {"0": [-1, 1]}},
        {"tables": {"first": [1, 1]}},
        {"forward": {}},
        {"backward": {"seconds": {"encode": 1.0}}},
    ],
)
def test_what_are_no_statistics_is_refused(change):
    with pytest.raises(SpecError, match="no statistics of an exchange"):
        ExchangeStats.from_dict({**counted().to_dict(), **change})


def test_statistics_as_text_are_a_table_of_both_directions():
    lines = str(counted()).splitlines()
    assert lines[0] == "3 exchanges: MiB of all, ms of one on average"
    assert lines[1].split() == (
        [
            "original",
            "MiB",
            "encoded",
            "MiB",
            "ratio",
            "encode",
            "ms",
            "sizes",
            "ms",
            "payload",
            "ms",
            "decode",
            "ms",
        ]
    )
    assert [line.split()[0] for line in lines[2:]] == ["forward", "table", "table", "backward"]
    ends = {len(line) for line in (lines[1], lines[2], lines[-1])}
    assert len(ends) == 1
    assert lines[2].split()[3] == "1.00"


def test_statistics_as_text_name_the_tables():
    with Exchange([0, 0], 4, names=["user", "item"], codec="raw") as exchange:
        exchange([torch.ones(6, 4)] * 2)
        for stats in (exchange.stats, exchange.stats_of_all_ranks(), exchange.reset_stats()):
            lines = str(stats).splitlines()
            assert [line.split()[:2] for line in lines[3:5]] == [
                ["table", "user"],
                ["table", "item"],
            ]
        exchange([torch.ones(6, 4)] * 2)
        assert "table item" in str(exchange.stats)


def test_statistics_of_ranks_add_up_bytes_and_take_the_slowest():
    one, other = counted(), counted()
    del other.tables[0]
    other.tables[5] = Volume(100, 10)
    other.backward_times = Stopwatch(dict.fromkeys(PHASES, 9.0))
    total = ExchangeStats.merged([one, other])
    assert total.num_exchanges == 3
    assert total.tables == {
        0: one.tables[0],
        1: Volume(*(2 * n for n in (one.tables[1].original_nbytes, one.tables[1].encoded_nbytes))),
        5: Volume(100, 10),
    }
    assert total.backward.original_nbytes == 2 * one.backward.original_nbytes
    assert set(total.backward_times.read().values()) == {9.0}
    forward = {name: max(x.forward_times.read()[name] for x in (one, other)) for name in PHASES}
    assert total.forward_times.read() == forward


def test_the_slowest_of_stopwatches_has_their_phases():
    watches = [Stopwatch({"gather": s, "add": 3 - s}, ("gather", "add")) for s in (1.0, 2.5)]
    assert Stopwatch.slowest(watches).read() == {"gather": 2.5, "add": 2.0}
    assert Stopwatch.slowest([]).read() == dict.fromkeys(PHASES, 0.0)


def test_statistics_of_one_process_are_a_copy():
    exchange = Exchange([0], 4, codec="raw")
    total = exchange.stats_of_all_ranks()
    exchange([torch.ones(6, 4)])
    assert (total.num_exchanges, exchange.stats_of_all_ranks().num_exchanges) == (0, 1)


def of_all_ranks(rank: int) -> tuple[int, int]:
    with Exchange([0, 1, 1], 4, codec="raw") as exchange:
        exchange([torch.ones(6, 4)] * (1 + rank))
        total = exchange.stats_of_all_ranks()
    return len(total.tables), total.forward.original_nbytes


def test_ranks_see_what_all_of_them_sent():
    assert returned(run_ranks(of_all_ranks, 2)) == [(3, 3 * 6 * 4 * 4)] * 2


def test_what_is_compiled_in_a_phase_is_not_counted():
    watch = Stopwatch()
    with watch.phase("encode", torch.device("cpu")):
        compile_notice._compilations.spent_s += 10.0
    assert watch.read()["encode"] == 0.0
    with watch.phase("encode", torch.device("cpu")):
        pass
    assert 0.0 < watch.read()["encode"] < 1.0


@pytest.mark.gpu
def test_what_is_compiled_while_a_device_waits_is_not_counted():
    watch = Stopwatch()
    with watch.phase("encode", torch.device("cuda")):
        compile_notice._compilations.spent_s += 10.0
    assert watch.read()["encode"] == 0.0
