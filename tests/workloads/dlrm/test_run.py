"""DLRM trains the same on any number of ranks, resumes exactly, and learns."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tersor.api import load, save
from tersor.errors import CorruptDataError, SpecError
from tersor.kernels.runtime.compile_notice import compilation_begins, compilation_ends
from tersor.policy import Choice
from tersor.sites.embeddings import AdaptiveBounds, Decay
from tersor.workloads.data.synthetic import SyntheticClicks
from tersor.workloads.dlrm import DlrmConfig, DlrmRun
from tersor.workloads.dlrm import dumps as dumping
from tersor.workloads.dlrm.config import uncompressed
from tersor.workloads.dlrm.dumps import Dumps
from tersor.workloads.models.dlrm import PRESETS, Dlrm, DlrmShape, place_tables
from tersor.workloads.training import loop as training
from tersor.workloads.training.checkpoint import complete_checkpoints, resume, save_checkpoint
from tersor.workloads.training.log import RunLog
from tersor.workloads.training.loop import Schedule, train
from tests.checks import assert_bits_equal
from tests.sites.ranks import returned, run_ranks

SOURCE = SyntheticClicks.scaled(50, num_train=2048, num_test=512)
SHAPE = DlrmShape(SOURCE.num_rows, 4, (8,), (8,))


def config(**options: Any) -> DlrmConfig:
    values = {"shape": SHAPE, "batch": 64, "steps": 6, "learning_rate": 0.1, **options}
    return DlrmConfig(**values)


def losses_of(rank: int, options: dict[str, Any]) -> tuple[list[float], float]:
    """Train; return this rank's losses and the AUC at the end."""
    run = DlrmRun(config(**options), SOURCE)
    losses = [run.step() for _ in range(6)]
    area = run.evaluate().auc
    run.close()
    return losses, area


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_two_ranks_take_the_steps_of_one(optimizer):
    options = {"codec": "raw", "backward": "none", "optimizer": optimizer}
    alone, area = losses_of(0, options)
    found = returned(run_ranks(losses_of, 2, options))
    together = np.mean([losses for losses, _ in found], axis=0)
    np.testing.assert_allclose(together, alone, rtol=1e-4)
    assert [other for _, other in found] == pytest.approx([area] * 2, abs=1e-3)
    assert found[0][1] == found[1][1]


def test_compressed_training_stays_near_the_uncompressed_one():
    plain = returned(run_ranks(losses_of, 2, {"codec": "raw", "backward": "none"}))
    small = returned(run_ranks(losses_of, 2, {"codec": "rows", "backward": "group8"}))
    for (exact, _), (lossy, _) in zip(plain, small, strict=True):
        np.testing.assert_allclose(lossy, exact, rtol=0.02)
        assert lossy != exact


def test_a_resumed_run_takes_the_same_steps(tmp_path):
    options = {
        "codec": "rows",
        "optimizer": "adagrad",
        "bounds": AdaptiveBounds(tight={3}, decay=Decay("linear", 2.0, 6)),
    }
    whole = DlrmRun(config(**options), SOURCE)
    for _ in range(6):
        whole.step()
    first = DlrmRun(config(**options), SOURCE)
    for _ in range(3):
        first.step()
    save_checkpoint(first, tmp_path)
    second = DlrmRun(config(**options), SOURCE)
    assert resume(second, tmp_path) == 3
    for _ in range(3):
        second.step()
    for name, value in whole.state().items():
        assert_bits_equal(second.state()[name], value)


def sent(run: DlrmRun) -> tuple[Any, ...]:
    """Return all that a run counted, without its times."""
    stats = run.exchange.stats
    return stats.num_exchanges, stats.tables, stats.backward


def stopped_and_resumed(folder: Path, **options: Any) -> tuple[DlrmRun, DlrmRun]:
    """Return a run stopped after three steps, and one that goes on from its checkpoint."""
    first = DlrmRun(config(**options), SOURCE)
    for _ in range(3):
        first.step()
    save_checkpoint(first, folder)
    second = DlrmRun(config(**options), SOURCE)
    assert resume(second, folder) == 3
    return first, second


def test_the_statistics_of_a_resumed_run_are_those_of_the_whole(tmp_path):
    whole = DlrmRun(config(), SOURCE)
    for _ in range(6):
        whole.step()
    first, second = stopped_and_resumed(tmp_path)
    assert second.exchange.stats.to_dict() == first.exchange.stats.to_dict()
    for _ in range(3):
        second.step()
    assert sent(second) == sent(whole)
    before, after = (run.exchange.stats.forward_times.read() for run in (first, second))
    assert all(after[name] > before[name] > 0 for name in ("encode", "decode"))


def test_a_checkpoint_of_before_it_held_statistics_still_resumes(tmp_path):
    first, _ = stopped_and_resumed(tmp_path)
    (file,) = tmp_path.glob("step-*/rank-0.json")
    file.unlink()
    again = DlrmRun(config(), SOURCE)
    assert resume(again, tmp_path) == 3
    assert again.exchange.stats.num_exchanges == 0
    for name, value in first.state().items():
        assert_bits_equal(again.state()[name], value)


@pytest.mark.parametrize("text", ["", "[]", '{"num_exchanges": 3}'])
def test_damaged_statistics_are_named_with_the_way_out(tmp_path, text):
    stopped_and_resumed(tmp_path)
    (file,) = tmp_path.glob("step-*/rank-0.json")
    file.write_text(text)
    with pytest.raises(CorruptDataError, match=r"rank-0\.json .*; remove it, and the run goes on"):
        resume(DlrmRun(config(), SOURCE), tmp_path)


def preferring(choice: Choice, best: int) -> Choice:
    """Return a choice as another machine would have made it, which finds one of the codecs fast."""
    speeds = [1e6 if k == best else 1e-6 for k in range(len(choice.trials))]
    trials = [
        replace(trial, encode_gbps=speed, decode_gbps=speed)
        for trial, speed in zip(choice.trials, speeds, strict=True)
    ]
    return Choice.of(trials, choice.bandwidth_gbit_s)


def test_one_checkpoint_resumed_three_times_goes_on_with_the_codecs_it_chose(tmp_path):
    whole = DlrmRun(config(codec="auto"), SOURCE)
    for _ in range(3):
        whole.step()
    plan = whole.exchange.plan
    for table, choice in plan.choices.items():
        plan.choices[table] = preferring(choice, table % len(choice.trials))
    chosen = whole.exchange.state_dict()["choices"]
    assert {choice.best_index for choice in plan.choices.values()} == {0, 1, 2, 3}
    save_checkpoint(whole, tmp_path)
    for _ in range(3):
        whole.step()
    for _ in range(3):
        again = DlrmRun(config(codec="auto"), SOURCE)
        assert resume(again, tmp_path) == 3
        assert again.exchange.state_dict()["choices"] == chosen
        for _ in range(3):
            again.step()
        assert sent(again) == sent(whole)
        for name, value in whole.state().items():
            assert_bits_equal(again.state()[name], value)


def test_a_checkpoint_says_its_bandwidth_in_gigabytes_as_earlier_ones_do(tmp_path):
    stopped_and_resumed(tmp_path, bandwidth_gbit_s=3.0)
    [path] = complete_checkpoints(tmp_path)
    facts = json.loads((path / "complete.json").read_text())
    assert facts["config"]["bandwidth_gbps"] == 0.375
    assert "bandwidth_gbit_s" not in facts["config"]
    with pytest.raises(SpecError, match="another bandwidth_gbps"):
        resume(DlrmRun(config(bandwidth_gbit_s=4.0), SOURCE), tmp_path)


def test_a_checkpoint_of_before_it_held_choices_and_bounds_by_table_still_resumes(tmp_path):
    first, _ = stopped_and_resumed(tmp_path)
    (path,) = tmp_path.glob("step-*")
    facts = json.loads((path / "complete.json").read_text())
    assert set(facts["config"]["bounds"]) == {"tight", "loose", "bounds", "decay"}
    state = load(path / "rank-0.tsr")
    del state["exchange"]
    save(path / "rank-0.tsr", state | {"iteration": torch.tensor(3)}, codec="raw")
    again = DlrmRun(config(), SOURCE)
    assert resume(again, tmp_path) == 3
    assert again.exchange.iteration == 3
    for name, value in first.state().items():
        assert_bits_equal(again.state()[name], value)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", "null", "{}", '{"step": "3"}', '{"world_size": 1, "step": null}', "\xff"],
)
def test_a_damaged_mark_of_a_checkpoint_is_named_with_the_way_out(tmp_path, text):
    stopped_and_resumed(tmp_path)
    (file,) = tmp_path.glob("step-*/complete.json")
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(CorruptDataError, match=r"complete\.json cannot be read; remove .*step-"):
        resume(DlrmRun(config(), SOURCE), tmp_path)


@pytest.mark.parametrize("value", [[], None, {"bounds": 3}, {**config().to_config(), "bounds": 3}])
def test_a_mark_with_damaged_options_is_of_another_run(tmp_path, value):
    stopped_and_resumed(tmp_path)
    (file,) = tmp_path.glob("step-*/complete.json")
    facts = json.loads(file.read_text())
    file.write_text(json.dumps({**facts, "config": value}))
    with pytest.raises((SpecError, CorruptDataError), match=r"step-000000003"):
        resume(DlrmRun(config(), SOURCE), tmp_path)


def test_a_run_past_its_last_step_is_refused(tmp_path):
    stopped_and_resumed(tmp_path)
    with pytest.raises(SpecError, match="at step 3, past --steps 2; give --steps 3 or more"):
        resume(DlrmRun(config(steps=2), SOURCE), tmp_path)


def saved_and_resumed(rank: int, folder: str) -> bool:
    """Stop two ranks half-way, go on in new runs, and compare with a whole run."""
    whole = DlrmRun(config(), SOURCE)
    for _ in range(6):
        whole.step()
    first = DlrmRun(config(), SOURCE)
    for _ in range(3):
        first.step()
    save_checkpoint(first, Path(folder))
    second = DlrmRun(config(), SOURCE)
    resume(second, Path(folder))
    for _ in range(3):
        second.step()
    same = all(torch.equal(x, second.state()[name]) for name, x in whole.state().items())
    same = same and sent(second) == sent(whole)
    for run in (whole, first, second):
        run.close()
    return same


def test_two_ranks_resume_exactly(tmp_path):
    assert returned(run_ranks(saved_and_resumed, 2, str(tmp_path))) == [True, True]


def test_only_complete_checkpoints_count_and_old_ones_go(tmp_path):
    run = DlrmRun(config(), SOURCE)
    paths = []
    for _ in range(4):
        run.step()
        paths.append(save_checkpoint(run, tmp_path))
    assert complete_checkpoints(tmp_path) == paths[-2:]
    assert not paths[0].exists()
    (paths[-1] / "complete.json").unlink()
    again = DlrmRun(config(), SOURCE)
    assert resume(again, tmp_path) == 3
    assert resume(DlrmRun(config(), SOURCE), tmp_path / "nothing") == 0


@pytest.mark.parametrize(
    ("options", "word"), [({"learning_rate": 0.2}, "learning_rate"), ({"codec": "flat"}, "codec")]
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, options, word):
    run = DlrmRun(config(), SOURCE)
    run.step()
    save_checkpoint(run, tmp_path)
    with pytest.raises(SpecError, match=word):
        resume(DlrmRun(config(**options), SOURCE), tmp_path)
    assert resume(DlrmRun(config(steps=50), SOURCE), tmp_path) == 1


def test_the_time_of_a_step_is_that_of_steps_alone(tmp_path, monkeypatch):
    clock = [0.0]

    def taking(seconds, call):
        def slow(*args, **options):
            clock[0] += seconds
            return call(*args, **options)

        return slow

    monkeypatch.setattr(training.time, "perf_counter", lambda: clock[0])
    run = DlrmRun(config(steps=20), SOURCE)
    for name, seconds in (("batch", 0.25), ("step", 1.0), ("evaluate", 100.0)):
        monkeypatch.setattr(run, name, taking(seconds, getattr(run, name)))
    monkeypatch.setattr(training, "save_checkpoint", taking(1000.0, training.save_checkpoint))
    monkeypatch.setattr(dumping, "dump_rows", taking(1e4, dumping.dump_rows))
    dumps = Dumps(tmp_path / "dumps", 7)
    schedule = Schedule(
        log_every=10, eval_every=15,
        checkpoint_every=5, checkpoints=tmp_path / "checkpoints",
    )  # fmt: skip
    with RunLog(tmp_path) as log:
        train(run, schedule, log, before_step=partial(dumps.write_if_due, run))
    assert clock[0] > 1e4
    lines = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    found = [line["step_s"] for line in lines if line["kind"] == "train"]
    assert found == [1.25, 1.25]


def test_the_time_of_a_step_has_no_compiling_in_it(tmp_path, monkeypatch):
    clock = [0.0]

    def compiling(seconds, others, call):
        def slow(*args, **options):
            result = call(*args, **options)
            compilation_begins()
            clock[0] += seconds
            compilation_ends()
            clock[0] += others
            return result

        return slow

    monkeypatch.setattr(training.time, "perf_counter", lambda: clock[0])
    run = DlrmRun(config(steps=4), SOURCE)
    for name, seconds, others in (
        ("batch", 2.0, 0.25), ("step", 64.0, 1.0), ("evaluate", 256.0, 16.0),
    ):  # fmt: skip
        monkeypatch.setattr(run, name, compiling(seconds, others, getattr(run, name)))
    with RunLog(tmp_path) as log:
        train(run, Schedule(log_every=2, eval_every=1), log)
    lines = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    found = [line["step_s"] for line in lines if line["kind"] == "train"]
    assert found == pytest.approx([1.25, 1.25])


def test_training_logs_dumps_and_learns(tmp_path):
    source = SyntheticClicks.scaled(20, num_train=40_000, num_test=4096)
    shape = DlrmShape(source.num_rows, 8, (32,), (32,))
    run = DlrmRun(config(shape=shape, batch=500, steps=80, optimizer="adagrad"), source)
    before = run.evaluate()
    schedule = Schedule(
        log_every=20, eval_every=40,
        checkpoint_every=40, checkpoints=tmp_path / "checkpoints",
    )  # fmt: skip
    seen = []
    with RunLog(tmp_path) as log:
        dump = partial(Dumps(tmp_path / "dumps", 40).write_if_due, run)
        metrics = train(run, schedule, log, lambda *report: seen.append(report), dump)
    assert metrics.auc > before.auc + 0.05
    assert metrics.auc < source.best_auc() + 0.02
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "train"] == [20, 40, 60, 80]
    assert [line["step"] for line in lines if line["kind"] == "eval"] == [40, 80]
    assert lines[-1]["kind"] == "exchange"
    assert lines[-1]["forward"]["ratio"] > 4
    assert len(seen) == 80
    dumps = sorted((tmp_path / "dumps").glob("*.npy"))
    assert len(dumps) == 3 * 26
    assert np.load(dumps[0]).shape == (500, 8)
    assert len(complete_checkpoints(tmp_path / "checkpoints")) == 2


def test_a_log_is_closed_once_however_often_nothing_is_left(tmp_path):
    first, last = stopped_and_resumed(tmp_path / "checkpoints", steps=3)
    schedule = Schedule(checkpoint_every=2, checkpoints=tmp_path / "checkpoints")
    with RunLog(tmp_path) as log:
        metrics = train(first, schedule, log)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with RunLog(tmp_path) as log:
        assert log.ended_at == 3
        assert train(last, schedule, log) == metrics
    assert {file: file.read_bytes() for file in before} == before


def test_steps_that_are_taken_again_end_their_log_again(tmp_path):
    for num_lines in (2, 4):
        with RunLog(tmp_path) as log:
            train(DlrmRun(config(steps=1), SOURCE), Schedule(log_every=0), log)
        assert len((tmp_path / "log.jsonl").read_text().splitlines()) == num_lines


@pytest.mark.parametrize("num_lines", [0, 1])
def test_a_log_that_was_killed_at_the_end_is_closed_later(tmp_path, num_lines):
    first, last = stopped_and_resumed(tmp_path / "checkpoints", steps=3)
    with RunLog(tmp_path) as log:
        train(first, Schedule(), log)
    whole = (tmp_path / "log.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "log.jsonl").write_text("".join(whole[:num_lines]))
    with RunLog(tmp_path) as log:
        assert log.ended_at is None
        train(last, Schedule(), log)
    assert (tmp_path / "log.jsonl").read_text() == "".join([*whole[:num_lines], *whole])


def test_tables_are_shared_evenly():
    for world_size in (1, 2, 3, 8):
        owners = place_tables(PRESETS["kaggle"].shape.num_rows, world_size)
        counts = [owners.count(rank) for rank in range(world_size)]
        assert max(counts) - min(counts) <= 1
    rows = PRESETS["kaggle"].shape.num_rows
    owners = place_tables(rows, 2)
    sums = [sum(n for n, o in zip(rows, owners, strict=True) if o == rank) for rank in (0, 1)]
    assert max(sums) < 1.5 * min(sums)


def test_weights_do_not_depend_on_who_holds_them():
    whole, part = Dlrm(SHAPE, range(26), seed=3), Dlrm(SHAPE, [5, 7], seed=3)
    for name, value in part.state_dict().items():
        assert_bits_equal(whole.state_dict()[name], value)
    assert not torch.equal(Dlrm(SHAPE, [5], seed=4).tables["5"].weight, part.tables["5"].weight)


def test_the_uncompressed_run_is_the_same_but_for_its_codecs():
    one = config(codec="rows", backward="group8", seed=7)
    plain = uncompressed(one)
    assert (plain.codec, plain.backward, plain.seed, plain.shape) == ("raw", "none", 7, one.shape)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: config(batch=0), "cannot be trained"),
        (lambda: config(optimizer="adam"), "sgd, adagrad"),
        (lambda: config(batch="64"), "batch must be a whole number, not '64'"),
        (lambda: config(steps=1.5), "steps must be a whole number, not 1.5"),
        (lambda: config(seed=None), "seed must be a whole number, not None"),
        (lambda: config(learning_rate=0.0), "above 0"),
        (lambda: config(learning_rate="fast"), "learning_rate must be a number, not 'fast'"),
        (lambda: config(bandwidth_gbit_s="10gbit"), "bandwidth_gbit_s must be a number"),
        (lambda: config(codec=None), "codec must be the id of a codec, not None"),
        (lambda: config(backward=None), "backward must be the id of a codec, not None"),
        (lambda: config(bounds=(0.01, 0.02, 0.03)), "bounds must be AdaptiveBounds"),
        (lambda: config(shape=(1, 2)), "shape must be a DlrmShape"),
        (lambda: DlrmShape((), 4, (), ()), "needs tables"),
        (lambda: DlrmRun(config(shape=DlrmShape((1,) * 26, 4, (), ())), SOURCE), "too few rows"),
        (lambda: DlrmRun(config(batch=4096), SOURCE).step(), "fewer than a batch"),
        (lambda: Dumps(Path("dumps"), 0), "at least one step between them, not 0"),
        (lambda: Schedule(checkpoint_every=3), "folder"),
        (lambda: Schedule(log_every=-1), "never"),
    ],
)
def test_wrong_runs_are_refused(make, word):
    with pytest.raises(SpecError, match=word):
        make()
