"""When calls are captured and replayed, with a device that only remembers what it is asked to do."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import tersor
from tersor.errors import SpecError
from tersor.kernels.runtime import replay as module
from tersor.kernels.runtime.device_cache import cached_on_stream, substituted
from tersor.kernels.runtime.replay import Call, Form, Replays, Varying

CPU = torch.device("cpu")


@cached_on_stream
def table_of(numbers: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=device)


class Graph:
    """Counts its replays; what it captured stays as it was."""

    made: ClassVar[list[Graph]] = []

    def __init__(self) -> None:
        self.num_replays = 0
        Graph.made.append(self)

    def capture_begin(self, **options: Any) -> None:
        assert options["capture_error_mode"] == "thread_local"

    def capture_end(self) -> None: ...

    def replay(self) -> None:
        self.num_replays += 1


@pytest.fixture
def reserved(monkeypatch) -> list[int]:
    """Patch CUDA; the list's only number is the memory that it has reserved."""
    reserved = [0]
    Graph.made = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: "side")
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved[0])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(module, "stream_of", lambda device: 5)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    return reserved


def call(
    replays: Replays, form: Form, numbers: tuple[int, ...], capacity: int = 4, grows: Any = None
) -> torch.Tensor:
    """Double the numbers, by way of a table that a replay would fill anew."""

    def run(parts: Any) -> torch.Tensor:
        if grows is not None and len(parts):
            grows[0] += 100
        return (table_of(numbers, CPU) * 2).repeat(capacity)

    varying = Varying(numbers, lambda: [np.array(numbers, np.int64)])
    made = Call(
        form, CPU, varying, lambda parts: {(table_of, numbers, CPU): parts[0]}, lambda x: [x]
    )
    found = run(())
    replays.note(made, run)
    return found


def test_the_third_call_is_captured(reserved) -> None:
    replays, form = Replays(), Form()
    for k in range(3):
        assert form.replay is None
        assert call(replays, form, (k, 3))[:2].tolist() == [2 * k, 6]
    assert form.replay is not None
    assert len(Graph.made) == 1


def test_a_replay_reads_what_was_filled_in(reserved) -> None:
    replays, form = Replays(), Form()
    for _ in range(3):
        call(replays, form, (1, 2))
    replay = form.replay
    assert replay is not None
    [part] = replay.parts
    for numbers in ((7, 8), (7, 8), (9, 9)):
        replay.fill(Varying(numbers, lambda numbers=numbers: [np.array(numbers, np.int64)]))
        assert part.tolist() == list(numbers)
    assert Graph.made[0].num_replays == 0


def test_what_only_the_device_knows_is_filled_in_before_every_replay(reserved) -> None:
    replays, form = Replays(), Form()
    for _ in range(3):
        call(replays, form, (1, 2))
    seen = []
    varying = Varying((5, 6), lambda: [np.array((5, 6), np.int64)])
    made = Call(form, CPU, varying, lambda parts: {}, list, lambda parts: seen.append(parts[0][0]))
    assert form.replay is not None
    for k in range(2):
        form.replay.launch(made)
        assert Graph.made[0].num_replays == k + 1
    assert seen == [5, 5]


def test_equal_numbers_are_not_uploaded_again(reserved, monkeypatch) -> None:
    replays, form = Replays(), Form()
    for _ in range(3):
        call(replays, form, (1, 2))
    uploads = []
    monkeypatch.setattr(module, "_fill", lambda table, varying: uploads.append(varying.numbers))
    assert form.replay is not None
    for numbers in ((1, 2), (1, 2), (3, 4), (3, 4), (1, 2)):
        form.replay.fill(Varying(numbers, list))
    assert uploads == [(1, 2), (3, 4), (1, 2)]


def test_copies_are_apart_from_what_a_replay_writes(reserved) -> None:
    replays, form = Replays(), Form()
    for _ in range(3):
        call(replays, form, (1, 2))
    assert form.replay is not None
    (copy,) = form.replay.copies()
    form.replay.written[0].zero_()
    assert copy.tolist() == [2, 4] * 4
    assert copy.dtype == torch.int64


def test_a_large_result_is_not_captured(reserved, monkeypatch) -> None:
    monkeypatch.setattr(module, "MOST_RESULT_NBYTES", 16 * 10)
    replays, form = Replays(), Form()
    for _ in range(5):
        call(replays, form, (1, 2), capacity=11)
    assert form.replay is None
    assert not Graph.made


def test_a_call_that_cannot_be_captured_is_made_as_before(reserved, monkeypatch) -> None:
    def refuse(self, **options: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Graph, "capture_begin", refuse)
    replays, form = Replays(), Form()
    for k in range(5):
        assert call(replays, form, (k, 2))[0] == 2 * k
    assert form.replay is None
    assert len(Graph.made) == 1


def test_graphs_that_hold_too_much_are_dropped_and_in_the_end_not_captured(reserved) -> None:
    replays = Replays()
    replays.configure(is_enabled=True, max_nbytes=1000)
    for _ in range(100):
        form = Form()
        for _ in range(3):
            call(replays, form, (1, 2), grows=reserved)
        assert replays.nbytes <= 1000
    # 100 bytes a graph: ten fit, the eleventh lets all be dropped, eight times
    assert len(Graph.made) == 8 * 11


def test_a_form_is_known_per_stream_and_not_while_a_user_captures(reserved, monkeypatch) -> None:
    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    replays = Replays()
    first = replays.form_of("shape", device)
    assert replays.form_of("shape", device) is first
    assert replays.form_of("other", device) is not first
    monkeypatch.setattr(module, "stream_of", lambda device: 6)
    assert replays.form_of("shape", device) is not first
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert replays.form_of("shape", device) is None
    assert replays.form_of("shape", CPU) is None


def test_forms_that_do_not_come_again_are_forgotten(reserved, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(module, "_MAX_FORMS", 3)
    device, replays = torch.device("cuda", 0), Replays()
    used = replays.form_of("used", device)
    for k in range(10):
        replays.form_of(k, device)
        assert replays.form_of("used", device) is used
    assert len(replays._forms) == 3


def test_turned_off_there_are_no_forms(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    replays = Replays()
    replays.configure(is_enabled=False, max_nbytes=None)
    assert replays.form_of("shape", torch.device("cuda", 0)) is None


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(SpecError, match="max_nbytes must be at least 0, not -1"):
        tersor.set_graph_replay(True, max_nbytes=-1)


def test_tables_are_substituted_in_the_block_alone() -> None:
    other = torch.zeros(2, dtype=torch.int64)
    with substituted({(table_of, (1, 2), CPU): other}):
        assert table_of((1, 2), CPU) is other
        assert table_of((3, 4), CPU).tolist() == [3, 4]
    assert table_of((1, 2), CPU).tolist() == [1, 2]
