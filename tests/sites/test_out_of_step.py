"""A rank that skips or repeats a step is an error on all ranks, before a value is used."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from tersor import Bound, create
from tersor.errors import ExchangeError
from tersor.sites.embeddings import Exchange
from tests.sites.ranks import returned, run_ranks, wait_for_all

NUM_RANKS, BATCHES = 3, (170, 170, 172)


def out_of_step(rank: int, fault: str, backward: Any) -> tuple[list[float], str]:
    """Rank 2 skips or repeats a backward; return the gradients that came and what was raised."""
    exchange = Exchange([0, 1, 2], 8, bounds=0.03, backward=backward, gradient_division=False)
    largest, message = [], ""
    try:
        for step in range(6):
            rows = torch.ones(sum(BATCHES), 8, requires_grad=True)
            loss = sum(y.sum() for y in exchange([rows], BATCHES))
            is_faulty = rank == 2 and step == 2
            if is_faulty and fault == "skips":
                continue
            loss.backward(retain_graph=True)
            largest.append(float(rows.grad.abs().max()))
            if is_faulty and fault == "repeats":
                loss.backward()
    except ExchangeError as error:
        message = str(error)
    wait_for_all(rank)
    return largest, message


@pytest.mark.parametrize("fault", ["skips", "repeats"])
@pytest.mark.parametrize(
    "backward",
    ["none", "half", create("flat", bound=Bound.relative(0.001))],
    ids=["none", "half", "flat"],
)
def test_a_rank_out_of_step_gives_an_error_and_no_gradients(fault, backward):
    for _ in range(2):
        for largest, message in returned(run_ranks(out_of_step, NUM_RANKS, fault, backward)):
            assert all(value == pytest.approx(1.0, abs=0.01) for value in largest)
            assert 2 <= len(largest) <= 3
            assert "is at its" in message
            assert "backward exchange 2" in message
            assert "forward exchange 3" in message


def repeats_in_step(rank: int) -> torch.Tensor | None:
    exchange = Exchange([0, 1, 2], 8, codec="raw", gradient_division=False)
    rows = torch.ones(6, 8, requires_grad=True)
    loss = sum(y.sum() for y in exchange([rows]))
    loss.backward(retain_graph=True)
    loss.backward()
    exchange.close()
    return rows.grad


def test_all_ranks_may_go_back_twice():
    for gradient in returned(run_ranks(repeats_in_step, NUM_RANKS)):
        assert torch.equal(gradient, torch.full((6, 8), 2.0))


def other_order(rank: int) -> str:
    """Two batches are on their way; rank 2 goes back in another order, and with other sizes."""
    exchange = Exchange([0, 1, 2], 8, codec="raw", gradient_division=False)
    losses = []
    for batch in (6, 300):
        rows = torch.ones(batch, 8, requires_grad=True)
        losses.append(sum(y.sum() for y in exchange([rows])))
    message = ""
    try:
        for loss in reversed(losses) if rank == 2 else losses:
            loss.backward()
    except ExchangeError as error:
        message = str(error)
    wait_for_all(rank)
    return message


def test_ranks_that_go_back_in_another_order_hear_of_it():
    for message in returned(run_ranks(other_order, NUM_RANKS)):
        assert "backward exchange 0" in message
        assert "backward exchange 1" in message


def dies_silently(rank: int) -> str:
    """Rank 1 dies; what ranks 0 and 2 then do must not be taken for the cause."""
    exchange = Exchange([0, 1, 2], 8, bounds=0.03)
    wait_for_all(rank, "connected")
    if rank == 1:
        os._exit(1)
    try:
        for _ in range(3):
            exchange([torch.ones(6, 8)])
    except ExchangeError as error:
        return str(error)
    return ""


def test_ranks_that_leave_because_another_died_are_not_named_as_the_cause():
    first, gone, last = run_ranks(dies_silently, NUM_RANKS)
    assert gone is None
    for message in (first, last):
        assert "a peer left, failed or timed out" in message
        assert "closed its exchange" not in message
