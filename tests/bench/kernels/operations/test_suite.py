from __future__ import annotations

import pytest
import torch

from tersor.bench.core import timing
from tersor.bench.core.inputs import make_input
from tersor.bench.core.outcome import SuiteOutcome
from tersor.bench.core.row_file import RowFile, read_rows
from tersor.bench.core.rows import OperationRow
from tersor.bench.kernels.operations import suite
from tersor.bench.kernels.operations.calls import BufferSet, bind
from tersor.bench.kernels.operations.plan import OPERATIONS
from tersor.bench.kernels.operations.suite import OperationsRun
from tersor.kernels.group import (
    group_dequantize,
    group_dequantize_sum_quantize,
    group_quantize,
)

NUM_VALUES = 2**14


def measured(*names, done=frozenset(), threads=(1,), on_row=lambda row: None, device="cpu"):
    outcome = SuiteOutcome(done, on_row)
    run = OperationsRun(names, device, threads, rounds=2, warmup=1, ceiling=None)
    run.measure(make_input("gradients", 4 * NUM_VALUES), outcome)
    return outcome


def test_every_operation_gives_a_row_with_what_it_costs():
    outcome = measured(*OPERATIONS)
    assert (outcome.notes, outcome.refusals) == ([], [])
    assert [row.codec for row in outcome.rows] == list(OPERATIONS)
    for row in outcome.rows:
        assert isinstance(row, OperationRow)
        assert (row.suite, row.input, row.num_values) == ("groups", "gradients", NUM_VALUES)
        assert row.original_nbytes == 4 * NUM_VALUES
        assert row.encode_s == row.decode_s
        assert row.encode_s.p50 > 0
        assert row.ceiling_share == pytest.approx(
            row.operation.moved_nbytes / row.encode_s.p50 / (2 * row.memcpy_gbps * 1e9)
        )
        assert (row.operation.num_calls, row.operation.graph_s, row.num_launches) == (1, None, None)


@pytest.mark.parametrize(
    ("name", "moved_nbytes"),
    [
        # n values, then a code each, then scales of 4 bytes
        ("difference4", 2 * 4 * NUM_VALUES + NUM_VALUES // 2 + 4 * NUM_VALUES // 2048),
        ("difference4-bf16", 2 * 2 * NUM_VALUES + NUM_VALUES // 2 + 4 * NUM_VALUES // 2048),
        ("add4-bf16", 2 * 2 * NUM_VALUES + NUM_VALUES // 2 + 4 * NUM_VALUES // 2048),
        ("hadamard8", 4 * NUM_VALUES + NUM_VALUES + 4 * NUM_VALUES // 128),
        ("sum8x4", NUM_VALUES // 2 + 4 * NUM_VALUES // 128 + 4 * NUM_VALUES // 8),
        # what 8 senders sent, and an eighth of as many values with half the bits
        (
            "sum8x8to4",
            NUM_VALUES + 4 * NUM_VALUES // 128 + NUM_VALUES // 16 + 4 * NUM_VALUES // 1024,
        ),
    ],
)
def test_bytes_moved_are_those_read_and_written(name, moved_nbytes):
    (row,) = measured(name).rows
    assert row.operation.moved_nbytes == moved_nbytes


@pytest.mark.parametrize(
    ("op", "names"),
    [
        (group_quantize, ["difference4", "difference4-bf16-stochastic", "hadamard8-stochastic"]),
        (group_dequantize, ["add4", "add4-bf16", "sum8x4-hadamard"]),
        (group_dequantize_sum_quantize, ["sum8x8to4", "sum8x8to4-stochastic"]),
    ],
)
@pytest.mark.parametrize("is_idle", [True, False])
def test_no_time_is_reported_for_other_bytes_than_the_reference_s(monkeypatch, op, names, is_idle):
    right = op.implementation("cpu")

    def wrong(*arguments):
        """Write nothing, or all but the last bit of the last byte as it should be."""
        if is_idle:
            return
        written = right(*arguments)
        last = written if isinstance(written, torch.Tensor) else written[-1]
        last = last.reshape(-1) if last.is_contiguous() else last[-1, -1]
        last.view(torch.uint8)[-1] ^= 1

    monkeypatch.setitem(op._loaded, "cpu", wrong)
    outcome = measured(*names)
    assert outcome.rows == []
    assert outcome.refusals == outcome.notes
    assert [sentence.split()[0] for sentence in outcome.refusals] == names


def test_each_place_is_compared_and_used_in_turn(monkeypatch):
    monkeypatch.setattr(suite, "cache_nbytes", lambda device: 4 * NUM_VALUES)
    seen, right = [], group_quantize.implementation("cpu")

    def spy(x, *arguments):
        seen.append(x.data_ptr())
        return right(x, *arguments)

    monkeypatch.setitem(group_quantize._loaded, "cpu", spy)
    measured("quantize4")
    assert len(set(seen)) == 3
    # a warm-up and two rounds, which begin at the second place
    places = list(dict.fromkeys(seen))
    assert seen[-3:] == [places[1], places[2], places[0]]


@pytest.mark.parametrize("name", ["add4", "quantize4"])
def test_a_form_of_a_call_that_writes_nothing_is_not_right(name):
    call = bind(OPERATIONS[name], BufferSet(torch.randn(NUM_VALUES)))
    call()
    assert call.is_right(call), "what earlier calls wrote or added must not matter"
    assert not call.is_right(lambda: None)


def test_a_resumed_run_measures_only_what_is_missing(tmp_path):
    with RowFile(tmp_path / "rows.jsonl") as file:
        measured("add4", on_row=file.append)
        found = measured("add4", "sum8x4", done=file.keys, on_row=file.append)
        assert [row.codec for row in found.rows] == ["sum8x4"]
        written = list(file.rows)
    assert read_rows(tmp_path / "rows.jsonl") == written
    assert measured("add4", "sum8x4", done=frozenset(r.key for r in written)).rows == []


def test_each_number_of_threads_has_its_row_and_its_threads(monkeypatch):
    seen, right = [], group_quantize.implementation("cpu")

    def spy(*arguments):
        seen.append(torch.get_num_threads())
        return right(*arguments)

    monkeypatch.setitem(group_quantize._loaded, "cpu", spy)
    assert [row.threads for row in measured("quantize4", threads=(1, 2)).rows] == [1, 2]
    assert seen[-2:] == [1, 2], "the calls of the last round"


def test_what_does_not_fit_in_memory_is_one_note(monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate\nmore lines")

    monkeypatch.setattr(suite, "bind", full)
    outcome = measured("add4", threads=(1, 2))
    assert (outcome.rows, outcome.refusals) == ([], [])
    assert outcome.notes == ["add4 is left out: CUDA out of memory. Tried to allocate"]


@pytest.mark.gpu
def test_on_cuda_a_loop_and_a_graph_are_timed_and_launches_counted():
    device = torch.device("cuda")
    values = make_input("gradients", 2**22)
    made = type(values)(values.name, tuple(x.to(device) for x in values.slices))
    outcome = SuiteOutcome()
    copy = torch.zeros(2**20, device=device)
    run = OperationsRun(tuple(OPERATIONS), "cuda", (1,), 2, 1, copy.clone)
    with timing.own_stream(device):
        run.measure(made, outcome)
    assert outcome.refusals == []
    assert [row.codec for row in outcome.rows] == list(OPERATIONS)
    for row in outcome.rows:
        assert row.operation.num_calls > 1
        assert row.operation.graph_s.p50 > 0
        assert row.num_launches == {"call": 1}
        assert set(row.workspace_nbytes) == {"call"}
        assert row.ceiling_share > 0
        assert row.graph_ceiling_share > 0
