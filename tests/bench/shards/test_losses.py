"""Trainings by scheme: compared seed by seed, judged, shown, and part of a report."""

from __future__ import annotations

import pytest

from tersor.bench.core.row_file import RowFile, read_rows
from tersor.bench.core.rows import ResultRow, TrainingRow
from tersor.bench.report import build_report, read_runs
from tersor.bench.shards.losses import LOSS_COLUMNS, loss_cells, loss_goals, loss_places
from tersor.bench.sites import evaluate_goals, page_blocks, report_sections, site_tables
from tersor.errors import SpecError
from tests.bench.shards.made import made_rows
from tests.bench.shards.made_trainings import training_row, training_rows


def seeds(scheme: str, loss: float, count: int = 3) -> list[TrainingRow]:
    return [training_row(scheme, seed, loss) for seed in range(count)]


def test_a_row_comes_back_from_its_file(tmp_path) -> None:
    rows = training_rows()
    with RowFile(tmp_path / "rows.jsonl") as file:
        for row in rows:
            file.append(row)
    assert read_rows(tmp_path / "rows.jsonl") == rows


@pytest.mark.parametrize(
    "change", [{"steps": 0}, {"curve": [[1, None]]}, {"curve": []}, {"odd": 1}]
)
def test_a_row_of_no_training_is_refused(change) -> None:
    config = training_row("exact", 0, 2.0).to_config()
    with pytest.raises(SpecError):
        ResultRow.from_config({**config, "training": {**config["training"], **change}})


def test_a_scheme_is_compared_with_exact_seed_by_seed() -> None:
    lines = {
        line[1]: dict(zip(LOSS_COLUMNS, line, strict=True)) for line in loss_cells(training_rows())
    }
    # 95 % interval of 0.1, 0.2, 0.3: 4.303 * 0.1 / sqrt(3)
    assert (lines["both"]["change %"], lines["both"]["95 % ±"]) == ("+0.20", "0.25")
    assert (lines["both"]["seeds"], lines["both"]["ratio"]) == ("3", "8.00")
    assert lines["direct"]["change %"] == "+5.00"
    assert (lines["exact"]["loss"], lines["exact"]["change %"], lines["exact"]["ratio"]) == (
        "2.1000", "", "",
    )  # fmt: skip


def test_a_seed_without_an_exact_training_does_not_count() -> None:
    rows = [*training_rows(), training_row("both", 7, 9.0)]
    [place] = loss_places(rows)
    change = place.change("both")
    assert change is not None
    assert change.mean == pytest.approx(0.2)


def test_a_row_says_how_many_seeds_are_compared() -> None:
    rows = [training_row("exact", 0, 2.0), *seeds("both", 2.002)]
    lines = [dict(zip(LOSS_COLUMNS, line, strict=True)) for line in loss_cells(rows)]
    assert [line["seeds"] for line in lines] == ["1", "1 of 3"]
    # one difference alone has no interval
    assert [line["95 % ±"] for line in lines] == ["", ""]
    assert lines[1]["change %"] == "+0.10"


def test_one_seed_of_exact_meets_no_goal() -> None:
    rows = [training_row("exact", 0, 2.0), *seeds("both", 2.0), *seeds("direct", 3.0)]
    assert all(goal.met is None for goal in loss_goals(rows))


def test_rows_that_do_not_say_their_ranks_in_the_group_are_compared() -> None:
    rows = seeds("exact", 2.0)
    rows += [
        training_row("both", seed, 2.002, group=f"seed {seed}, text, 4 gloo ranks")
        for seed in range(3)
    ]
    [place] = loss_places(rows)
    assert place.seeds("both") == [0, 1, 2]
    assert any(goal.met for goal in loss_goals(rows))


def test_a_drawn_change_is_that_of_common_seeds() -> None:
    rows = [
        training_row("exact", 0, 2.0),
        training_row("both", 0, 2.0),
        training_row("both", 1, 9.0),
    ]
    [place] = loss_places(rows)
    assert {change for _, change in place.change_curve("both")} == {0.0}
    [alone] = loss_places(rows[1:])
    assert alone.change_curve("both") == []


def test_a_training_made_again_replaces_the_first() -> None:
    rows = [
        training_row("exact", 0, 2.0),
        training_row("both", 0, 3.0),
        training_row("both", 0, 2.0),
    ]
    [place] = loss_places(rows)
    change = place.change("both")
    assert change is not None
    assert change.mean == 0


def test_trainings_of_other_lengths_are_not_compared() -> None:
    rows = [training_row("exact", 0, 2.0), training_row("both", 0, 2.0, steps=301)]
    assert [place.change(next(iter(place.rows))) for place in loss_places(rows)][1] is None


@pytest.mark.parametrize(("harm", "met"), [(1.002, True), (1.004, False)])
def test_the_full_scheme_must_stay_close_to_exact(harm, met) -> None:
    rows = [*seeds("exact", 2.0), *seeds("both", 2.0 * harm)]
    goals = {goal.name: goal.met for goal in loss_goals(rows)}
    assert goals["gpt-2M, both: loss at most 0.3 % above exact"] is met
    assert goals["gpt-2M, direct: loss at least 3 % above exact"] is None


@pytest.mark.parametrize(("harm", "met"), [(1.05, True), (1.01, False)])
def test_direct_weights_must_be_shown_to_harm(harm, met) -> None:
    rows = [*seeds("exact", 2.0), *seeds("direct", 2.0 * harm)]
    goals = {goal.name: goal.met for goal in loss_goals(rows)}
    assert goals["gpt-2M, direct: loss at least 3 % above exact"] is met


def test_two_seeds_meet_no_goal() -> None:
    rows = [*seeds("exact", 2.0, 2), *seeds("both", 2.0, 2)]
    assert all(goal.met is None for goal in loss_goals(rows))


def test_trainings_on_other_texts_are_not_compared() -> None:
    rows = [training_row("exact", 0, 2.0), training_row("both", 0, 3.0, data="another")]
    assert [place.change("both") for place in loss_places(rows) if "both" in place.rows] == [None]


def test_only_the_goals_of_measured_suites_are_judged() -> None:
    assert all("loss" in goal.name for goal in evaluate_goals(training_rows()))
    assert not any("loss" in goal.name for goal in evaluate_goals(made_rows()))
    assert len(site_tables(training_rows())) == len(site_tables(made_rows())) == 1


def test_a_page_shows_the_losses() -> None:
    text = page_blocks()["losses"](training_rows(), {"codec": "both"})
    assert "| gpt-2M, 4 ranks, 2 per node, 300 steps of 16 | both | 3 |" in text


def test_a_report_draws_the_curves(tmp_path) -> None:
    with RowFile(tmp_path / "rows.jsonl") as file:
        for row in training_rows():
            file.append(row)
    report = build_report(read_runs([str(tmp_path / "rows.jsonl")]), report_sections(), title="t")
    shown = report.render()
    assert "both +0.20 %" in shown
    assert "Change of the loss: gpt-2M" in shown
