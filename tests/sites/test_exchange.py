"""The compressed all-to-all on real ranks: values, gradients, statistics and failures."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tersor import Bound, create
from tersor.errors import ExchangeError, SpecError
from tersor.sites.embeddings import AdaptiveBounds, ClassBounds, Decay, Exchange
from tests.checks import assert_bits_equal, assert_within_bound
from tests.sites.ranks import TIMEOUT_S, Failure, returned, run_ranks, wait_for_all

# tables of different widths, one rank with none, samples of different number
OWNERS, WIDTHS, BATCHES = (0, 2, 0, 2, 2), (4, 8, 16, 3, 8), (5, 0, 7)
HANGING_S = 5.0


def table_rows(table: int, batch: int = sum(BATCHES), width: int | None = None) -> torch.Tensor:
    """Return looked-up rows that every rank can make for itself."""
    generator = torch.Generator().manual_seed(table)
    weights = torch.randn(6, width or WIDTHS[table], generator=generator)
    return weights[torch.randint(0, 6, (batch,), generator=generator)]


def gradient_of(table: int, rank: int, rows: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * table + rank)
    return torch.randn(rows, WIDTHS[table], generator=generator)


def exchanged(rank: int, options: dict[str, Any], steps: int = 2) -> dict[str, Any]:
    """Exchange and go back; return values, gradients and statistics of the last step."""
    exchange = Exchange(OWNERS, WIDTHS, gradient_division=False, **options)
    for _ in range(steps):
        rows = [table_rows(table).requires_grad_() for table in exchange.tables]
        pending = exchange.start(rows, BATCHES)
        out = pending.wait()
        loss = sum((y * gradient_of(t, rank, BATCHES[rank])).sum() for t, y in enumerate(out))
        loss.backward()
    exchange.close()
    return {
        "out": [y.detach() for y in out],
        "grad": [x.grad for x in rows],
        "stats": exchange.stats.to_dict(),
    }


def own_part(x: torch.Tensor, rank: int) -> torch.Tensor:
    start = sum(BATCHES[:rank])
    return x[start : start + BATCHES[rank]]


def test_the_identity_codec_is_the_plain_collective():
    found = returned(run_ranks(exchanged, 3, {"codec": "raw", "backward": "none"}))
    for rank, one in enumerate(found):
        for table, y in enumerate(one["out"]):
            assert_bits_equal(y, own_part(table_rows(table), rank))
        tables = [table for table, owner in enumerate(OWNERS) if owner == rank]
        for table, gradient in zip(tables, one["grad"], strict=True):
            expected = torch.cat([gradient_of(table, r, BATCHES[r]) for r in range(3)])
            assert_bits_equal(gradient, expected)
        assert one["stats"]["forward"]["ratio"] == 1.0


@pytest.mark.parametrize(
    "options",
    [
        {"bounds": 0.05, "backward": "half"},
        {"bounds": Bound.absolute(0.01), "codec": "flat", "backward": "group8"},
        {
            "bounds": AdaptiveBounds(tight={0}, loose={4}, decay=Decay("linear", 2.0, 4)),
            "codec": "auto",
            "backward": create("flat", bound=Bound.relative(0.01)),
        },
    ],
    ids=["rows", "flat", "adaptive"],
)
def test_every_slice_keeps_its_bound_both_ways(options):
    found = returned(run_ranks(exchanged, 3, options))
    policy = options["bounds"]
    for rank, one in enumerate(found):
        for table, y in enumerate(one["out"]):
            x = own_part(table_rows(table), rank)
            if x.numel() == 0:
                assert y.shape == x.shape
                continue
            bound = (
                policy.bound(table, 1) if isinstance(policy, AdaptiveBounds)
                else policy if isinstance(policy, Bound) else Bound.relative(policy)
            )  # fmt: skip
            assert_within_bound(x, y, bound.resolve(float(x.min()), float(x.max())))
        tables = [table for table, owner in enumerate(OWNERS) if owner == rank]
        for table, gradient in zip(tables, one["grad"], strict=True):
            expected = torch.cat([gradient_of(table, r, BATCHES[r]) for r in range(3)])
            torch.testing.assert_close(gradient, expected, rtol=0.05, atol=0.1)
        stats = one["stats"]
        assert stats["num_exchanges"] == 2
        assert sorted(map(int, stats["tables"])) == tables
        raw = sum(2 * 4 * sum(BATCHES) * WIDTHS[table] for table in tables)
        assert stats["forward"]["original_nbytes"] == raw
        assert stats["backward"]["original_nbytes"] == 2 * 4 * BATCHES[rank] * sum(WIDTHS)


def collectives(rank: int, options: dict[str, Any]) -> tuple[int, int, dict[str, Any]]:
    """Return how many collectives each direction takes, and what the exchange found."""
    send, dtypes = dist.all_to_all_single, []

    def counted(out: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        dtypes.append(out.dtype)
        return send(out, *args, **kwargs)

    dist.all_to_all_single = counted
    found = exchanged(rank, options, steps=1)
    first = dtypes.index(torch.uint8) + 1
    return first, len(dtypes) - first, found


@pytest.mark.parametrize(
    ("backward", "num_backward"),
    [
        ("none", 2),
        ("half", 2),
        ("group8", 2),
        (create("fp8"), 2),
        (create("flat", bound=Bound.relative(0.01)), 3),
    ],
    ids=["none", "half", "group8", "fp8", "flat"],
)
def test_sizes_that_every_rank_knows_are_not_exchanged(backward, num_backward):
    options = {"codec": "half", "backward": backward}
    for rank, (forward, back, found) in enumerate(returned(run_ranks(collectives, 3, options))):
        # turns, sizes and payloads: ranks may differ in the batches they are given, and sizes say so
        # before rows are mistaken
        assert forward == 3
        assert back == num_backward
        assert (found["stats"]["backward"]["seconds"]["sizes"] > 0) == (num_backward > 2)
        for table, gradient in zip(
            [t for t, owner in enumerate(OWNERS) if owner == rank], found["grad"], strict=True
        ):
            expected = torch.cat([gradient_of(table, r, BATCHES[r]) for r in range(3)])
            torch.testing.assert_close(gradient, expected, rtol=0.07, atol=0.1)


def counts_of(table: int) -> list[int]:
    """Return how many ids of a table the samples of each rank have."""
    return [(3 * table + 5 * rank) % 7 for rank in range(3)]


def sequences(rank: int, options: dict[str, Any]) -> dict[str, Any]:
    """Exchange rows that are not pooled, and go back."""
    exchange = Exchange(OWNERS, WIDTHS, gradient_division=False, **options)
    counts = [counts_of(table) for table in exchange.tables]
    rows = [
        table_rows(table, sum(count)).requires_grad_()
        for table, count in zip(exchange.tables, counts, strict=True)
    ]
    out = exchange.start_sequences(rows, counts).wait()
    loss = sum((y * gradient_of(t, rank, len(y))).sum() for t, y in enumerate(out))
    loss.backward()
    exchange.close()
    return {"out": [y.detach() for y in out], "grad": [x.grad for x in rows]}


def refilled(rank: int, backward: str, is_sequence: bool) -> list[torch.Tensor]:
    """Give counts that are no plain integers, and change them before the gradients go back."""
    exchange = Exchange([0, 1], 4, codec="raw", backward=backward, gradient_division=False)
    counts = [np.int64(2), torch.tensor(3)]
    rows = torch.randn(5, 4, generator=torch.Generator().manual_seed(rank)).requires_grad_()
    there = (
        exchange.start_sequences([rows], [counts])
        if is_sequence
        else exchange.start([rows], counts)
    )
    out = there.wait()
    counts[:] = [5, 0]
    sum(((k + 1) * y).sum() for k, y in enumerate(out)).backward()
    exchange.close()
    return [rows.grad]


@pytest.mark.parametrize("is_sequence", [False, True], ids=["pooled", "sequence"])
@pytest.mark.parametrize("backward", ["none", "group8"])
def test_counts_may_be_any_integers_and_change_after_the_rows_went_out(backward, is_sequence):
    for rank, (gradient,) in enumerate(returned(run_ranks(refilled, 2, backward, is_sequence))):
        torch.testing.assert_close(gradient, torch.full((5, 4), rank + 1.0), rtol=0.02, atol=0)


@pytest.mark.parametrize("codec", ["raw", "rows"])
def test_sequences_of_different_length_reach_their_samples(codec):
    found = returned(run_ranks(sequences, 3, {"bounds": 0.03, "codec": codec, "backward": "none"}))
    for rank, one in enumerate(found):
        for table, y in enumerate(one["out"]):
            counts = counts_of(table)
            x = table_rows(table, sum(counts)).split(counts)[rank]
            if codec == "raw" or x.numel() == 0:
                assert_bits_equal(y, x)
            else:
                bound = Bound.relative(0.03).resolve(float(x.min()), float(x.max()))
                assert_within_bound(x, y, bound)
        tables = [table for table, owner in enumerate(OWNERS) if owner == rank]
        for table, gradient in zip(tables, one["grad"], strict=True):
            counts = counts_of(table)
            assert_bits_equal(
                gradient, torch.cat([gradient_of(table, r, counts[r]) for r in range(3)])
            )


def without_gradients(rank: int) -> list[torch.Tensor]:
    exchange = Exchange([0, 1], 8, bounds=0.03)
    with torch.no_grad():
        out = exchange([table_rows(rank, 4, 8)])
    exchange.close()
    return out


def test_evaluation_needs_no_backward():
    found = returned(run_ranks(without_gradients, 2))
    assert [tuple(y.shape) for one in found for y in one] == [(2, 8)] * 4


def configured_differently(rank: int) -> None:
    Exchange([0, 1], 8 + rank)


def bounds_differ(rank: int) -> None:
    Exchange([0, 1], 8, bounds=0.5 if rank else 0.01)


def bandwidths_differ(rank: int) -> None:
    Exchange([0, 1], 8, bandwidth_gbit_s=1.0 + rank)


def batches_differ(rank: int) -> None:
    exchange = Exchange([0, 1], 8, bounds=0.03)
    exchange([table_rows(rank, 4, 8)], [2, 2] if rank else [1, 3])


@pytest.mark.parametrize(
    "function", [configured_differently, bounds_differ, bandwidths_differ, batches_differ]
)
def test_ranks_that_disagree_all_hear_of_it(function):
    found = run_ranks(function, 2)
    assert all(isinstance(one, Failure) for one in found)
    assert any(one.name == "SpecError" and "same" in one.message for one in found)
    assert all(one.name in ("SpecError", "ExchangeError") for one in found)


def bounds_in_any_order(rank: int) -> bool:
    """Equal sets, written differently: 0 and 8 meet in a small table of hashes."""
    tables = frozenset([8, 0] if rank else [0, 8])
    Exchange([0] * 9, 8, bounds=AdaptiveBounds(tight=tables, decay=Decay.off())).close()
    return True


def test_the_same_tables_in_another_order_are_the_same_arguments():
    assert repr(frozenset([8, 0])) != repr(frozenset([0, 8]))
    returned(run_ranks(bounds_in_any_order, 2))


def waits_twice(rank: int) -> tuple[torch.Tensor | None, int]:
    """Wait for the same rows again, before and after they go back; return their gradient."""
    exchange = Exchange([0, 1], 8, bounds=0.03, backward="none", gradient_division=False)
    rows = table_rows(rank, 4, 8).requires_grad_()
    pending = exchange.start([rows])
    first, again = pending.wait(), pending.wait()
    sum(y.sum() for y in (*first, *again)).backward()
    assert all(a is b is c for a, b, c in zip(first, again, pending.wait(), strict=True))
    exchange.close()
    assert len(pending.wait()) == 2
    return rows.grad, exchange.stats.to_dict()["backward"]["original_nbytes"]


def test_rows_that_are_waited_for_again_are_the_same_and_go_back_once():
    for gradient, nbytes in returned(run_ranks(waits_twice, 2)):
        assert_bits_equal(gradient, torch.full((4, 8), 2.0))
        assert nbytes == 2 * 2 * 8 * 4


def test_one_process_gives_the_same_rows_again():
    rows = table_rows(0, 4, 8).requires_grad_()
    pending = Exchange([0], 8, bounds=0.03, backward="none").start([rows])
    (first,), (again,) = pending.wait(), pending.wait()
    (first + again).sum().backward()
    assert first is again is pending.wait()[0]
    assert_bits_equal(rows.grad, torch.full((4, 8), 2.0))


def under_autocast(rank: int, dtype: torch.dtype, cast: torch.dtype) -> list[torch.Tensor]:
    """Exchange and go back with autocast on, if to a dtype; return rows and gradients."""
    exchange = Exchange([0, 1], 8, bounds=0.03, dtype=dtype)
    rows = table_rows(rank, 4, 8).to(dtype).requires_grad_()
    with torch.autocast("cpu", cast, enabled=cast != dtype):
        out = exchange([rows])
        sum(y.float().square().sum() for y in out).backward()
    exchange.close()
    return [*(y.detach() for y in out), rows.grad]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_autocast_changes_nothing_that_is_sent(dtype):
    cast = torch.float16 if dtype == torch.bfloat16 else torch.bfloat16
    plain = returned(run_ranks(under_autocast, 2, dtype, dtype))
    for one, other in zip(plain, returned(run_ranks(under_autocast, 2, dtype, cast)), strict=True):
        for x, y in zip(one, other, strict=True):
            assert x.dtype == dtype
            assert_bits_equal(x, y)


def lies(rank: int, fault: str) -> None:
    """Rank 1 sends a wrong head, wrong bytes, or dies; all others exchange as always."""
    exchange = Exchange([0, 1, 2], 8, bounds=0.03)
    exchange([table_rows(rank, 6, 8)])
    if rank == 1:
        plant(fault)
    for _ in range(3):
        exchange([table_rows(rank, 6, 8)])


def plant(fault: str) -> None:
    send = dist.all_to_all_single

    def altered(out: torch.Tensor, sent: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if fault == "dies":
            os._exit(1)
        if fault == "headers" and sent.dtype == torch.int64 and sent.dim() == 1:
            sent = sent.clone()
            sent[0::3] = 1 << 50
        if fault == "bytes" and sent.dtype == torch.uint8:
            sent = sent.clone()
            sent[::5] ^= 0x55
        return send(out, sent, *args, **kwargs)

    dist.all_to_all_single = altered


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("headers", "rank 1 announced an impossible chunk"),
        ("bytes", ""),
        ("dies", "a peer left, failed or timed out"),
    ],
)
def test_a_peer_that_fails_gives_an_error_on_every_rank(fault, words):
    found = run_ranks(lies, 3, fault)
    honest = [found[0], found[2]]
    assert all(isinstance(one, Failure) for one in honest)
    assert all(one.name in ("CorruptDataError", "ExchangeError") for one in honest)
    assert any(words in one.message for one in honest)
    if fault == "bytes":
        assert any(one.name == "CorruptDataError" for one in honest)


def hangs(rank: int) -> float:
    """Rank 1 stops without dying; return how long the other one waited for it."""
    # kernels are compiled while nobody counts the seconds
    Exchange([0, 1], 8, bounds=0.03)([table_rows(rank, 4, 8)])
    group = dist.new_group(timeout=timedelta(seconds=HANGING_S))
    exchange = Exchange([0, 1], 8, bounds=0.03, group=group)
    begin = time.monotonic()
    if rank == 0:
        with pytest.raises(ExchangeError, match="timed out"):
            exchange([table_rows(rank, 4, 8)])
    wait_for_all(rank)
    return time.monotonic() - begin


def test_a_peer_that_hangs_is_waited_for_as_long_as_the_group_says():
    waited, _ = returned(run_ranks(hangs, 2))
    assert HANGING_S / 2 < waited < TIMEOUT_S / 2


def test_one_process_encodes_and_decodes_what_it_looks_up():
    exchange = Exchange([0, 0], [8, 16], bounds=ClassBounds().base, backward="half")
    rows = [table_rows(k, 32, width).requires_grad_() for k, width in enumerate((8, 16))]
    out = exchange(rows)
    for row, y in zip(rows, out, strict=True):
        x = row.detach()
        bound = Bound.relative(0.03).resolve(float(x.min()), float(x.max()))
        assert_within_bound(x, y.detach(), bound)
        assert not torch.equal(x, y)
    gradients = [torch.randn_like(y) for y in out]
    torch.autograd.backward(out, gradients)
    for x, gradient in zip(rows, gradients, strict=True):
        assert_bits_equal(x.grad, gradient.half().float())
    assert exchange.stats.forward.ratio > 2.0 == exchange.stats.backward.ratio


def test_bounds_go_before_the_bound_of_a_codec():
    codec = create("flat", bound=Bound.relative(1.0))
    rows = torch.randn(64, 8)
    (found,) = Exchange([0], 8, bounds=Bound.absolute(1e-3), codec=codec)([rows])
    assert_within_bound(rows, found.detach(), 1e-3)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: Exchange([0, 1], 8), "ranks 0 to 0"),
        (lambda: Exchange([0], [8, 8]), "as many widths"),
        (lambda: Exchange([0], 0), "at least one value"),
        (lambda: Exchange([0, 0], 8, bounds=AdaptiveBounds(tight={2})), "numbered 0 to 1"),
        (lambda: Exchange([0], 8, codec=create("auto", bound=Bound.relative(0.1))), "auto"),
        (lambda: Exchange([0], 8, dtype=torch.int32), "cannot encode"),
        (
            lambda: Exchange([0], 8, codec=create("flat", bound=Bound.absolute(1e-4))),
            r"give bounds=Bound.absolute\(0.0001\) to keep it, or codec='flat'",
        ),
        (lambda: Exchange([0], 8, bandwidth_gbit_s=0.0), "above 0 Gbit/s"),
        (lambda: Exchange([0], 8)([]), "owns 1 tables"),
        (lambda: Exchange([0], 8)([torch.ones(4, 7)]), r"\[batch, 8\]"),
        (lambda: Exchange([0], 8)([torch.ones(4, 8)], [3]), "make up"),
        (lambda: Exchange([0], 8)([torch.ones(0, 8)], [-1]), "make up"),
        (lambda: Exchange([], 8)([], [-1]), "at least 0 samples"),
        (lambda: Exchange([], 8)([]), "given batches"),
        (lambda: Exchange([0], 8).start_sequences([torch.ones(4, 8)], []), "as many counts"),
        (lambda: Exchange([0], 8).start_sequences([torch.ones(4, 8)], [[3]]), "add up to its 4"),
    ],
)
def test_wrong_arguments_are_refused(make, word):
    with pytest.raises(SpecError, match=word):
        make()
