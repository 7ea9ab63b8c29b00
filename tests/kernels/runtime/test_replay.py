"""When calls are captured and replayed, with a device that only remembers what it is asked to do."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ClassVar

import pytest
import torch

import tersor
from tersor.errors import SpecError
from tersor.kernels.runtime import replay as module
from tersor.kernels.runtime.device_cache import (
    cached_on_stream,
    check_substituted,
    substituted,
)
from tersor.kernels.runtime.replay import Call, Form, Replays

CPU = torch.device("cpu")


@cached_on_stream
def table_of(numbers: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=device)


class Graph:
    """Counts its replays; what it captured stays as it was."""

    made: ClassVar[list[Graph]] = []

    def __init__(self) -> None:
        self.num_replays = 0
        self.pool: Any = None
        Graph.made.append(self)

    def capture_begin(self, **options: Any) -> None:
        assert options["capture_error_mode"] == "thread_local"
        self.pool = options["pool"]

    def capture_end(self) -> None: ...

    def replay(self) -> None:
        self.num_replays += 1


@pytest.fixture
def reserved(monkeypatch) -> list[int]:
    """Patch CUDA; the list's only number is the memory that it has reserved."""
    reserved, handles = [0], iter(range(1000))
    Graph.made = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: "side")
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved[0])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "current")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(module, "stream_of", lambda device: 5)
    monkeypatch.setattr(module, "raw_stream", lambda index: 5)
    return reserved


def new_form() -> Form:
    return Form(torch.device("cuda", 0), 5)


def call_of(form: Form, numbers: tuple[int, ...]) -> Call[torch.Tensor]:
    return Call(form, CPU, ((table_of, numbers, CPU),), lambda x: [x])


def make(
    replays: Replays, form: Form, numbers: tuple[int, ...], capacity: int = 4, grows: Any = None
) -> torch.Tensor:
    """Double the numbers of a table that varies, as the third call of its form or not."""

    def run() -> torch.Tensor:
        if grows is not None:
            grows[0] += 100
        return (table_of(numbers, CPU) * 2).repeat(capacity)

    found = run()
    replays.note(call_of(form, numbers), run)
    return found


def captured(replays: Replays, numbers: tuple[int, ...] = (1, 2)) -> Form:
    form = new_form()
    for _ in range(3):
        make(replays, form, numbers)
    assert form.replay is not None
    return form


def test_the_third_call_is_captured(reserved) -> None:
    replays, form = Replays(), new_form()
    for k in range(3):
        assert form.replay is None
        assert make(replays, form, (k, 3))[:2].tolist() == [2 * k, 6]
    assert form.replay is not None
    assert len(Graph.made) == 1


def test_a_replay_reads_what_varies_and_copies_it_only_if_it_differs(reserved) -> None:
    replay = captured(Replays()).replay
    [table] = replay.tables
    assert table is not table_of((1, 2), CPU)
    for k, numbers in enumerate([(7, 8), (9, 9), (9, 9)]):
        replay.launch(call_of(new_form(), numbers).varying)
        assert table.tolist() == list(numbers)
        assert Graph.made[0].num_replays == k + 1
    table.zero_()
    replay.launch(call_of(new_form(), (9, 9)).varying)
    assert table.tolist() == [0, 0]


def test_a_graph_is_launched_on_its_own_device_and_stream_alone(reserved, monkeypatch) -> None:
    replays = Replays()
    form = replays.form_of("shape", torch.device("cuda", 0))
    for _ in range(3):
        make(replays, form, (1, 2))
    table = (table_of, (7, 8), CPU)

    def launched() -> Any:
        return replays.launch(form, (table,), lambda replay: replay.tables[0].tolist())

    assert launched() == [7, 8]
    with monkeypatch.context() as patched:
        patched.setattr(module, "raw_stream", lambda index: 6)
        assert launched() is None
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "current_device", lambda: 1)
        assert launched() is None
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert launched() is None
    assert Graph.made[0].num_replays == 1
    assert launched() == [7, 8]
    replays.reset()
    assert launched() is None
    assert Graph.made[0].num_replays == 2


def test_a_captured_call_is_not_captured_again(reserved) -> None:
    replays = Replays()
    form = captured(replays)
    make(replays, form, (1, 2))
    assert len(Graph.made) == 1


def test_a_call_captured_in_an_inference_is_replayed_in_a_training(reserved) -> None:
    with torch.inference_mode():
        form = captured(Replays())
    form.replay.launch(call_of(form, (3, 4)).varying)
    assert form.replay.tables[0].tolist() == [3, 4]


def test_a_large_result_is_not_captured(reserved, monkeypatch) -> None:
    monkeypatch.setattr(module, "MOST_RESULT_NBYTES", 16 * 10)
    replays, form = Replays(), new_form()
    for _ in range(5):
        make(replays, form, (1, 2), capacity=11)
    assert form.replay is None
    assert not Graph.made


def test_a_result_that_cannot_be_copied_is_not_made_again(reserved) -> None:
    replays, form, runs = Replays(), new_form(), []
    for _ in range(5):
        replays.note(call_of(form, (1, 2)), lambda: runs.append(1), is_copied=False)
    assert not runs


def test_a_call_that_cannot_be_captured_is_made_as_before(reserved, monkeypatch) -> None:
    def refuse(self, **options: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    replays, form = Replays(), new_form()
    with monkeypatch.context() as patched:
        patched.setattr(Graph, "capture_begin", refuse)
        for k in range(5):
            assert make(replays, form, (k, 2))[0] == 2 * k
    assert form.replay is None
    assert len(Graph.made) == 1
    # the pool of a failed capture is dead
    captured(replays)
    assert Graph.made[1].pool != Graph.made[0].pool


def test_graphs_of_a_stream_share_a_pool(reserved) -> None:
    replays = Replays()
    captured(replays)
    captured(replays)
    assert Graph.made[0].pool == Graph.made[1].pool


def test_graphs_that_hold_too_much_are_dropped_and_in_the_end_not_captured(reserved) -> None:
    replays = Replays()
    replays.configure(is_enabled=True, max_nbytes=1000)
    for _ in range(100):
        form = new_form()
        for _ in range(3):
            make(replays, form, (1, 2), grows=reserved)
        assert replays.nbytes <= 1000
    # 100 bytes a graph: ten fit, one more lets all be dropped, eight times
    assert len(Graph.made) == 8 * 11


def test_a_form_is_known_per_stream_and_not_while_a_user_captures(reserved, monkeypatch) -> None:
    device = torch.device("cuda", 0)
    replays = Replays()
    first = replays.form_of("shape", device)
    assert replays.form_of("shape", device) is first
    assert replays.form_of("other", device) is not first
    monkeypatch.setattr(module, "stream_of", lambda device: 6)
    assert replays.form_of("shape", device) is not first
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert replays.form_of("shape", device) is None
    assert replays.form_of("shape", CPU) is None


def test_forms_without_a_graph_are_forgotten_first(reserved, monkeypatch) -> None:
    monkeypatch.setattr(module, "_MAX_FORMS", 3)
    device, replays = torch.device("cuda", 0), Replays()
    old = replays.form_of("captured", device)
    for _ in range(3):
        make(replays, old, (1, 2))
    for k in range(10):
        replays.form_of(k, device)
    assert replays.form_of("captured", device) is old
    assert len(replays._forms) == 3
    assert replays.num_graphs == 1


def test_turned_off_there_are_no_forms(reserved) -> None:
    replays = Replays()
    replays.configure(is_enabled=False, max_nbytes=None)
    assert replays.form_of("shape", torch.device("cuda", 0)) is None


@pytest.mark.parametrize("limit", [-1, 1.5, "1", True, float("nan")], ids=repr)
def test_a_limit_that_is_no_number_of_bytes_is_refused(limit) -> None:
    with pytest.raises(SpecError, match=r"max_nbytes must be a whole number of bytes.*not "):
        tersor.set_graph_replay(True, max_nbytes=limit)


@pytest.mark.parametrize("enabled", ["no", 0, None], ids=repr)
def test_what_is_neither_true_nor_false_is_refused(enabled) -> None:
    with pytest.raises(SpecError, match="enabled must be True or False"):
        tersor.set_graph_replay(enabled)


def test_tables_are_substituted_in_the_block_alone() -> None:
    other = torch.zeros(2, dtype=torch.int64)
    with substituted({(table_of, (1, 2), CPU): other}):
        assert table_of((1, 2), CPU) is other
        assert table_of((3, 4), CPU).tolist() == [3, 4]
    assert table_of((1, 2), CPU).tolist() == [1, 2]


def test_other_tables_that_vary_are_refused_in_the_block() -> None:
    check_substituted(table_of, (1, 2), CPU)
    with substituted({(table_of, (1, 2), CPU): torch.zeros(2)}):
        check_substituted(table_of, (1, 2), CPU)
        with pytest.raises(SpecError, match="cannot be replayed"):
            check_substituted(table_of, (1,), CPU)
