from __future__ import annotations

import json

import pytest
from msgspec import structs

from tersor.bench.core.exchange_times import ExchangeTimes
from tersor.bench.core.row_file import RowFile
from tersor.bench.core.rows import ResultRow
from tersor.bench.core.timing import Percentiles
from tersor.bench.embeddings.exchange_tables import EXCHANGE_COLUMNS, exchange_cells
from tersor.bench.embeddings.report.exchanges import speedups
from tersor.bench.page import filled
from tersor.bench.sites import evaluate_goals
from tersor.errors import SpecError
from tests.bench.core.test_rows import make_row


def both_ways(codec, exchange_ms, step_ms, *, batch=2048, link="1gbit", per_node=1):
    """Return the rows of one contender, backward twice as slow as forward."""
    rows = []
    for direction, factor in (("forward", 1), ("backward", 2)):
        times = [Percentiles.of([ms / 1e3]) for ms in (1.0, 2.0, exchange_ms * factor, step_ms)]
        exchange = ExchangeTimes(
            direction=direction, network="namespaces" if link else "loopback", link=link,
            num_ranks=4, ranks_per_node=per_node, batch=batch, sizes_s=times[0], payload_s=times[1], exchange_s=times[2],
            step_s=times[3],
        )  # fmt: skip
        row = make_row(suite="embeddings", codec=codec, input="dlrm", exchange=exchange)
        rows.append(structs.replace(row, group=f"{direction}, {exchange.place}"))
    return rows


ROWS = [*both_ways("float32", 60, 200), *both_ways("rows", 10, 80), *both_ways("auto", 8, 160)]


def test_a_row_with_the_times_of_an_exchange_survives_json():
    for row in ROWS:
        assert ResultRow.from_config(json.loads(json.dumps(row.to_config()))) == row


def test_a_row_of_before_nodes_held_several_ranks_is_read_as_one_of_one_rank_each():
    for row in ROWS:
        config = json.loads(json.dumps(row.to_config()))
        assert config["exchange"].pop("ranks_per_node") == 1
        assert ResultRow.from_config(config) == row
        for wrong in ({"ranks_per_node": 0}, {"nodes": 2}, {"ranks_per_node": 1, "nodes": 2}):
            with pytest.raises(SpecError):
                ResultRow.from_config({**config, "exchange": {**config["exchange"], **wrong}})


def test_exchanges_of_nodes_with_several_ranks_are_compared_with_each_other_alone():
    nodes = [*both_ways("float32", 30, 100, per_node=2), *both_ways("rows", 10, 80, per_node=2)]
    cells = {(line[0], line[2]): line for line in exchange_cells([*ROWS, *nodes])}
    assert cells["1gbit", "rows"][5] == "6.00"
    assert cells["1gbit, 2 per node", "rows"][5] == "3.00"
    # the goals are those of ranks with a link each
    assert [goal.met for goal in evaluate_goals(nodes)] == [None, None]
    found = speedups([*ROWS, *nodes])
    for what, gain in (("dlrm", 6.0), ("dlrm, 2 per node", 3.0)):
        assert found["forward", what, 4, 2048]["rows"] == [(1.0, pytest.approx(gain))]


def test_speedups_are_those_over_float32_on_the_same_link_and_batch():
    others = both_ways("float32", 600, 2000, link="100mbit")
    cells = [
        dict(zip(EXCHANGE_COLUMNS, line, strict=True)) | {"all": line}
        for line in exchange_cells([*others, *ROWS, *both_ways("half", 30, 100, batch=512)])
    ]
    assert [(c["link"], c["batch"], c["exchange"]) for c in cells] == [
        ("100mbit", "2,048", "float32"), ("1gbit", "2,048", "float32"), ("1gbit", "2,048", "rows"),
        ("1gbit", "2,048", "auto"), ("1gbit", "512", "half"),
    ]  # fmt: skip
    assert [cells[2]["all"][k] for k in (5, 8, 10)] == ["6.00", "6.00", "2.50"]
    assert cells[2]["forward ms"] == "10.0 (0.0 + 1.0 + 2.0 + 0.0)"
    assert [cells[4]["all"][k] for k in (5, 8, 10)] == ["", "", ""]


def test_goals_are_judged_by_the_best_of_ours_on_a_throttled_link():
    forward, step = evaluate_goals(ROWS)
    assert (forward.measured, forward.met) == (pytest.approx(7.5), True)
    assert (step.measured, step.met) == (pytest.approx(2.5), True)
    on_loopback = both_ways("float32", 60, 200, link=None) + both_ways("rows", 1, 2, link=None)
    assert [goal.met for goal in evaluate_goals(on_loopback)] == [None, None]


def test_a_page_shows_the_exchanges_asked_for(tmp_path):
    with RowFile(tmp_path / "results" / "rows.jsonl") as file:
        for row in [*ROWS, *both_ways("half", 30, 100, batch=512)]:
            file.append(row)
    text = filled("<!-- exchanges: results/rows.jsonl batch=2048 -->\n<!-- end -->", tmp_path)
    assert "| 1gbit | 2,048 | rows | 8.0 | 10.0 (" in text
    assert "half" not in text
