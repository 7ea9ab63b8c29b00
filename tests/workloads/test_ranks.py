"""A rank that cannot go on tells the others, and one that lost them says so in a sentence."""

from __future__ import annotations

import atexit
import os

import pytest
import torch

from tersor.errors import ExchangeError, SpecError
from tersor.workloads import ranks as joining
from tersor.workloads.ranks import Ranks, run_local_ranks
from tests.sites.ranks import run_ranks

ERRORS = {
    "SpecError": SpecError("no such table"),
    "KeyError": KeyError("table"),
    "RuntimeError": RuntimeError("shapes differ\nat line 3"),
    "ValueError": ValueError(),
}


def failing_on_rank_1(rank: int, name: str) -> list[str]:
    def task() -> None:
        if rank == 1:
            raise ERRORS[name]

    ranks = Ranks.current()
    try:
        ranks.run_on_all(task)
    except Exception as error:  # noqa: BLE001 - both the rank's own error and what peers make of it
        # all ranks are still in step
        return [type(error).__name__, str(error), *ranks.gathered(f"rank {rank} goes on")]
    raise AssertionError


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("SpecError", "no such table"),
        ("KeyError", "KeyError: 'table'"),
        ("RuntimeError", "RuntimeError: shapes differ"),
        ("ValueError", "ValueError"),
    ],
)
def test_whatever_stops_a_rank_is_told_to_the_others(name, words):
    first, second = run_ranks(failing_on_rank_1, 2, name)
    both = ["rank 0 goes on", "rank 1 goes on"]
    assert first == ["SpecError", f"rank 1 cannot go on: {words}", *both]
    assert second == [name, str(ERRORS[name]), *both]


CALLS = {
    "gathered": lambda ranks: ranks.gathered(1),
    "run_on_all": lambda ranks: ranks.run_on_all(list),
    "add_up": lambda ranks: ranks.add_up(torch.ones(3)),
    "concatenated": lambda ranks: ranks.concatenated(torch.ones(3)),
}


def calling_alone(rank: int, name: str) -> None:
    if rank == 0:
        CALLS[name](Ranks.current())


@pytest.mark.parametrize("name", list(CALLS))
def test_a_rank_whose_peer_is_gone_says_so_in_a_sentence(name):
    first, _ = run_ranks(calling_alone, 2, name)
    assert first.name == "ExchangeError"
    assert first.message.startswith("rank 0 ")
    assert "look for the first error of any rank (" in first.message
    assert "\n" not in first.message


def of_both(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    ranks, own = Ranks.current(), torch.tensor([1.0, 2.0]) * (rank + 1)
    together = ranks.concatenated(own)
    ranks.add_up(own)
    return own, together


def test_tensors_of_all_ranks_are_added_and_put_in_order():
    for total, together in run_ranks(of_both, 2):
        assert total.tolist() == [3.0, 6.0]
        assert together.tolist() == [1.0, 2.0, 2.0, 4.0]


@pytest.fixture
def under_torchrun(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")


def test_a_rank_that_cannot_join_says_so_in_a_sentence(under_torchrun, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("connection refused\nframe 1")

    monkeypatch.setattr(joining.dist, "init_process_group", refuse)
    words = r"^rank 3 lost the others: .* \(connection refused\)$"
    with pytest.raises(ExchangeError, match=words), joining.joined(torch.device("cpu")):
        raise AssertionError


@pytest.mark.parametrize("error", [RuntimeError("~/gloo/log.txt is odd"), SpecError("wrong")])
def test_errors_that_are_not_of_the_connection_stay_what_they_are(
    under_torchrun, monkeypatch, error
):
    monkeypatch.setattr(joining.dist, "init_process_group", lambda *_, **__: None)
    with pytest.raises(type(error)) as caught, joining.joined(torch.device("cpu")):
        raise error
    assert caught.value is error


def test_an_error_of_the_backend_becomes_a_sentence(under_torchrun, monkeypatch):
    monkeypatch.setattr(joining.dist, "init_process_group", lambda *_, **__: None)
    words = r"^rank 3 lost the others: .* \(peer closed\)$"
    with pytest.raises(ExchangeError, match=words), joining.joined(torch.device("cpu")):
        raise joining.dist.DistBackendError("peer closed\nframe 1")


def dying_in_finalization(rank: int, send) -> None:
    # in place of a gloo thread that drops a tensor too late
    atexit.register(os._exit, 3)
    send(f"rank {rank} is done")


def test_a_rank_that_is_done_ends_without_finalizing_the_interpreter():
    messages = []
    run_local_ranks(dying_in_finalization, 2, {}, lambda *message: messages.append(message))
    assert sorted(messages) == [(0, "rank 0 is done"), (1, "rank 1 is done")]


def failing(rank: int, send) -> None:
    del send
    raise SpecError(f"rank {rank} cannot go on")


def test_a_local_rank_that_fails_is_named():
    with pytest.raises(ExchangeError, match=r"^rank 0 failed; its own error stands above$"):
        run_local_ranks(failing, 1, {}, print)
