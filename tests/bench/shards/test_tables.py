"""Rows of trainings between ranks: kept, shown, judged, and part of a report."""

from __future__ import annotations

import pytest

from tersor.bench.core.row_file import RowFile, read_rows
from tersor.bench.core.rows import ResultRow
from tersor.bench.core.shard_times import ShardPart
from tersor.bench.report import build_report, read_runs
from tersor.bench.shards.contenders import OURS, VARIANTS, described, make_variant
from tersor.bench.shards.tables import SHARD_COLUMNS, shard_cells, shard_goals, shards_block
from tersor.bench.sites import report_sections, site_tables
from tersor.errors import SpecError
from tests.bench.shards.made import made_row, made_rows, seconds


def test_a_row_comes_back_from_its_file(tmp_path):
    rows = made_rows()
    with RowFile(tmp_path / "rows.jsonl") as file:
        for row in rows:
            file.append(row)
    assert read_rows(tmp_path / "rows.jsonl") == rows


def test_a_row_of_another_wrapper_or_without_time_is_refused():
    config = made_row("fsdp-fp32", 1.0, 2.0).to_config()
    for change in ({"wrapper": "zero"}, {"step_s": {"p20": 0, "p50": 0, "p80": 0}}, {"odd": 1}):
        broken = {**config, "shards": {**config["shards"], **change}}
        with pytest.raises(SpecError):
            ResultRow.from_config(broken)


def test_bits_are_those_of_all_links_per_weight_and_other_node():
    row = made_row("fsdp-4-bit", 0.1, 1.0)
    assert (row.bits_per_weight, row.bits_per_gradient) == (4.0, 6.0)
    assert made_row("ddp-4-bit", 0.1, 1.0).bits_per_weight is None
    assert made_row("fsdp-4-bit", 0.1, 1.0, link=None).bits_per_gradient is None


def test_gains_are_over_float32_of_the_same_wrapper():
    cells = {
        line[1]: dict(zip(SHARD_COLUMNS[:5], line, strict=False))
        for line in shard_cells(made_rows())
    }
    lines = {line[1]: line for line in shard_cells(made_rows())}
    assert lines["fsdp-4-bit"][5:9] == ["6.00", "1000", "1,024", "2.00"]
    assert lines["ddp-4-bit"][5:9] == ["2.00", "800", "1,280", "1.50"]
    assert lines["fsdp-fp32"][5] == ""
    assert cells["fsdp-4-bit"]["bits/weight"] == "4.00"
    assert cells["ddp-4-bit"]["bits/weight"] == ""


def test_goals_are_judged_for_the_asked_model_and_links_alone():
    goals = {goal.name: goal for goal in shard_goals(made_rows())}
    assert goals["exchange 6 x fsdp-fp32's, 1gbit"].met
    assert goals["exchange 3 x fsdp-bf16's, 1gbit"].met
    assert goals["tokens/s 2.2 x fsdp-fp32's, 1gbit"].met is False
    assert goals["tokens/s 6 x fsdp-fp32's, 100mbit"].met is None
    others = [made_row(name, 0.1, 1.0, input="gpt-2M") for name in ("fsdp-fp32", "fsdp-4-bit")]
    assert {goal.met for goal in shard_goals(others)} == {None}


def test_the_terminal_a_page_and_a_report_show_the_rows(tmp_path):
    rows = made_rows()
    [table] = site_tables(rows)
    assert table.row_count == len(rows)
    assert "all-reduce" in str(table.caption)
    assert "| fsdp-4-bit |" in shards_block(rows, {"link": "1gbit"})
    assert "fsdp-4-bit" not in shards_block(rows, {"link": "100mbit"})
    with RowFile(tmp_path / "rows.jsonl") as file:
        for row in rows:
            file.append(row)
    report = build_report(read_runs([str(tmp_path / "rows.jsonl")]), report_sections(), title="t")
    shown = report.render()
    assert "fsdp-4-bit gains most: 2.00 times the tokens per second" in shown
    assert "as much as an all-reduce" in shown


def test_every_way_has_options_that_a_row_can_hold():
    assert set(OURS) < set(VARIANTS)
    specs = [str(described(make_variant(name))) for name in VARIANTS]
    assert len(set(specs)) == len(specs)
    with pytest.raises(SpecError, match="fsdp-4-bit"):
        make_variant("zip")


def test_a_part_without_links_is_kept():
    part = ShardPart(seconds=seconds(0.1), link_nbytes=None, node_nbytes=5)
    assert part.link_nbytes is None
