"""A rank that fails lets the others know, even while it lives on and keeps its error."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tersor.codecs.cast import Half
from tersor.comm import all_to_all
from tersor.errors import ExchangeError, SpecError, TersorError
from tersor.sites.embeddings import Exchange
from tests.sites.ranks import returned, run_ranks, wait_for_all

WAIT_S, AT_ONCE_S = 40.0, 20.0
"""How long the group waits, and what is far from it on a machine with much else to do."""
SLOW_S = 2.0


def lied_to(rank: int, is_trained: bool) -> str:
    """Rank 1 sends rank 0 bytes that are no payload; return what this rank raised."""
    exchange = Exchange([0, 1, 2], 8, bounds=0.03)
    rows = torch.randn(6, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    send = dist.all_to_all_single

    def altered(out: Any, sent: Any, *sizes: Any, **kwargs: Any) -> Any:
        if sent.dtype == torch.uint8:
            sent = sent.clone()
            sent[: sizes[1][0] : 5] ^= 0x55
        return send(out, sent, *sizes, **kwargs)

    if rank == 1:
        dist.all_to_all_single = altered
    try:
        for _ in range(3):
            out = exchange([rows])
            if is_trained:
                sum(y.sum() for y in out).backward()
    except TersorError as error:
        wait_for_all(rank)
        return type(error).__name__
    return "nothing"


@pytest.mark.parametrize("is_trained", [False, True], ids=["forward", "both ways"])
def test_a_rank_that_keeps_its_error_does_not_keep_the_others_waiting(is_trained):
    found = returned(run_ranks(lied_to, 3, is_trained))
    assert found == ["CorruptDataError", "ExchangeError", "ExchangeError"]


class Boasting(Half):
    """Says that its payloads are larger than it writes them."""

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        return super().max_nbytes(shape, dtype) + 8


def boasts(rank: int) -> list[tuple[str, str, float]]:
    """Send gradients with a codec whose fixed size is another; return what this rank raised."""
    exchange = Exchange([0, 1], 8, codec="raw", backward=Boasting())
    out = exchange([torch.zeros(4, 8, requires_grad=True)])
    found = error_of(exchange, lambda _: sum(y.sum() for y in out).backward())
    wait_for_all(rank)
    return [found]


def test_a_codec_that_is_wrong_about_its_fixed_size_is_refused():
    for ((name, message, _),) in returned(run_ranks(boasts, 2)):
        assert name == "SpecError"
        assert "correct max_nbytes or size_kind" in message


def made() -> Exchange:
    """Return an exchange of two ranks that wait for each other no longer than a test can."""
    group = dist.new_group(timeout=timedelta(seconds=WAIT_S))
    return Exchange([0, 1], 8, bounds=0.03, group=group)


def zeros(batch: int, width: int = 8) -> list[torch.Tensor]:
    return [torch.zeros(batch, width)]


def raising(exchange: Exchange, error: BaseException) -> None:
    """Make the choice of a codec fail in a way that nobody thought of."""

    def look(*_: Any) -> None:
        raise error

    exchange.plan = type("Broken", (), {"remeasure_if_due": look})()
    exchange(zeros(4))


def connects_slowly(rank: int) -> bool:
    """Rank 1 takes its time to connect; return whether it had when this rank's exchange was made."""
    store, join = dist.distributed_c10d._get_default_store(), dist.new_group

    def slow(*args: Any, **kwargs: Any) -> Any:
        group = join(*args, **kwargs)
        time.sleep(SLOW_S)
        store.set("rank 1 is connected", "yes")
        return group

    if rank == 1:
        dist.new_group = slow
    Exchange([0, 1], 8, bounds=0.03)
    return bool(store.check(["rank 1 is connected"]))


def test_no_rank_can_leave_while_another_still_connects_to_it():
    assert returned(run_ranks(connects_slowly, 2)) == [True, True]


def cannot_connect(rank: int) -> tuple[str, str, float]:
    """Rank 1 finds its peer gone while it connects; return the error on this rank."""
    join = dist.new_group

    def broken(*args: Any, **kwargs: Any) -> None:
        join(*args, **kwargs)
        raise RuntimeError("connectFullMesh failed with Connection closed by peer")

    if rank == 1:
        dist.new_group = broken
    return error_of(None, lambda _: Exchange([0, 1], 8, bounds=0.03))


def test_a_rank_that_cannot_connect_says_so_and_keeps_nobody_waiting():
    peer, own = returned(run_ranks(cannot_connect, 2))
    assert (own[0], peer[0]) == ("ExchangeError", "ExchangeError")
    assert "the set-up failed on rank 1" in own[1]
    assert "connectFullMesh" in own[1]
    assert "rank 1 could not connect" in peer[1]
    assert max(own[2], peer[2]) < AT_ONCE_S


MISTAKES: dict[str, Callable[[Exchange], Any]] = {
    "of shape [batch, 8]": lambda exchange: exchange(zeros(4, 7)),
    "owns 1 tables": lambda exchange: exchange([]),
    "not divisible by 2 ranks": lambda exchange: exchange(zeros(5)),
    "make up the looked-up rows": lambda exchange: exchange(zeros(4), [4]),
    "at least 0 samples": lambda exchange: exchange(zeros(4), [-2, 6]),
    "add up to its 4 rows": lambda exchange: exchange.start_sequences(zeros(4), [[1, 2]]),
    "no kernel": lambda exchange: raising(exchange, KeyError("no kernel")),
    "Ctrl-C": lambda exchange: raising(exchange, KeyboardInterrupt("Ctrl-C")),
}
NAMES = {"no kernel": "KeyError", "Ctrl-C": "KeyboardInterrupt"}


def error_of(exchange: Any, use: Callable[[Any], Any]) -> tuple[str, str, float]:
    """Return the name, the message and the seconds of the error of a use."""
    begin = time.monotonic()
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - the test looks at what it is
        use(exchange)
    return type(caught.value).__name__, str(caught.value), time.monotonic() - begin


def one_rank_errs(rank: int) -> list[tuple[str, str, float]]:
    """Rank 0 makes every mistake, each with a new exchange; return the error on this rank."""
    found = []
    for words, mistake in MISTAKES.items():
        exchange = made()
        use = mistake if rank == 0 else (lambda exchange: exchange(zeros(4)))
        found.append(error_of(exchange, use))
        wait_for_all(rank, words)
    return found


def test_a_mistake_of_one_rank_is_its_own_error_and_ends_the_others_at_once():
    own, peers = returned(run_ranks(one_rank_errs, 2))
    for words, (name, message, _) in zip(MISTAKES, own, strict=True):
        assert words in message
        assert name == NAMES.get(words, "SpecError")
    for words, (name, message, waited) in zip(MISTAKES, peers, strict=True):
        assert (name, waited < AT_ONCE_S) == ("ExchangeError", True), (words, message, waited)


def codes_without_memory(rank: int, function: str) -> tuple[str, str, float]:
    """Rank 0 has no memory to encode or decode with; return the error on this rank."""
    exchange = made()

    def refuse(*_: Any) -> None:
        raise RuntimeError("can't allocate memory: you tried to allocate 9 bytes")

    if rank == 0:
        setattr(all_to_all, function, refuse)
    found = error_of(exchange, lambda exchange: [exchange(zeros(4)) for _ in range(2)])
    wait_for_all(rank)
    return found


@pytest.mark.parametrize("function", ["encode_batch", "decode_batch"])
def test_a_rank_without_memory_keeps_its_error_and_tells_the_other(function):
    own, peer = returned(run_ranks(codes_without_memory, 2, function))
    words = "can't allocate memory: you tried to allocate 9 bytes"
    assert own[:2] == ("RuntimeError", words)
    assert peer[0] == "ExchangeError"
    assert peer[1].startswith(f"rank 0 failed: RuntimeError: {words}; this ended the ")


def all_err(rank: int) -> list[torch.Tensor]:
    """All ranks make one mistake alike, and go on with a new exchange on the same group."""
    group = dist.new_group(timeout=timedelta(seconds=WAIT_S))
    exchange = Exchange([0, 1], 8, bounds=0.03, group=group)
    name, _, waited = error_of(exchange, lambda exchange: exchange(zeros(5)))
    assert (name, waited < AT_ONCE_S) == ("SpecError", True)
    with pytest.raises(ExchangeError, match="make a new one"):
        exchange(zeros(4))
    wait_for_all(rank)
    return Exchange([0, 1], 8, bounds=0.03, group=group)(zeros(4))


def test_a_mistake_of_all_ranks_is_the_error_of_each_and_leaves_their_group_as_it_is():
    found = returned(run_ranks(all_err, 2))
    assert [tuple(y.shape) for one in found for y in one] == [(2, 8)] * 4


def errs_with_rows_on_their_way(rank: int) -> tuple[str, str, float]:
    """Rank 0 makes a mistake while an earlier exchange is not waited for yet."""
    exchange = made()
    pending = exchange.start(zeros(4))
    found = error_of(exchange, lambda exchange: exchange(zeros(4, 7 if rank == 0 else 8)))
    wait_for_all(rank)
    with pytest.raises(ExchangeError):
        pending.wait()
    return found


def test_rows_on_their_way_do_not_keep_the_others_waiting_for_a_rank_that_left():
    own, peer = returned(run_ranks(errs_with_rows_on_their_way, 2))
    assert own[0] == "SpecError"
    assert (peer[0], peer[2] < AT_ONCE_S) == ("ExchangeError", True)


UNMAKEABLE: dict[str, dict[str, Any]] = {
    "above 0 Gbit/s": {"codec": "auto", "bandwidth_gbit_s": 0},
    "ranks 0 to 1": {"owners": [0, 2]},
    "must be above 0": {"bounds": -1.0},
}


def cannot_be_made(rank: int, num_wrong: int) -> list[tuple[str, float]]:
    """The first ranks make exchanges that cannot be; return what the error of each on this rank."""
    group = dist.new_group(timeout=timedelta(seconds=WAIT_S))
    found = []
    for wrong in UNMAKEABLE.values():
        begin = time.monotonic()
        given = {"owners": [0, 0], "widths": 8, "group": group} | (
            wrong if rank < num_wrong else {}
        )
        with pytest.raises(SpecError) as caught:
            Exchange(**given)
        found.append((str(caught.value), time.monotonic() - begin))
    return found


@pytest.mark.parametrize("num_wrong", [1, 2], ids=["one", "all"])
def test_ranks_that_cannot_make_an_exchange_say_why_and_nobody_waits_for_them(num_wrong):
    found = returned(run_ranks(cannot_be_made, 2, num_wrong))
    for rank, one in enumerate(found):
        for words, (message, waited) in zip(UNMAKEABLE, one, strict=True):
            expected = words if rank < num_wrong else "rank 0 could not make its exchange"
            assert expected in message
            assert waited < AT_ONCE_S
