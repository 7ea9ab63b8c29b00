"""All-gather and reduce-scatter in few bits, on real ranks."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tersor.errors import SpecError
from tersor.sites import shards
from tests.sites.ranks import returned, run_ranks, wait_for_all
from tests.sites.shards.fsdp_rank import message_of

SIZE = 3000


def _values(rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(4, SIZE, generator=torch.Generator().manual_seed(rank)).to(dtype)


def _gathered(rank: int, nbits: int, dtype: torch.dtype, seed: int | None) -> torch.Tensor:
    out = torch.empty(4 * SIZE, dtype=dtype)
    shards.quantized_all_gather(out, _values(rank, dtype)[0], nbits=nbits, seed=seed)
    return out


@pytest.mark.parametrize(
    ("nbits", "dtype", "seed"),
    [(8, torch.float32, None), (4, torch.bfloat16, None), (4, torch.float32, 7)],
)
def test_all_ranks_gather_the_same_values(nbits, dtype, seed):
    found = returned(run_ranks(_gathered, 4, nbits, dtype, seed))
    assert all(torch.equal(found[0], one) for one in found)
    for rank, row in enumerate(found[0].view(4, -1)):
        exact = _values(rank, dtype)[0].float()
        # half a step to the nearest, a whole one by chance; bfloat16 rounds by 2**-8 more
        step = exact.abs().max() / (2 ** (nbits - 1) - 1)
        bound = (0.5 if seed is None else 1.0) * step * 1.0001
        bound += exact.abs().max() * (2**-8 if dtype == torch.bfloat16 else 0)
        assert (row.float() - exact).abs().max() <= bound
        assert not torch.equal(row.float(), exact)


def _scattered(rank: int, options: dict[str, Any], op: str, ranks_per_node: int) -> list[Any]:
    gradients = shards.Gradients(**options)
    found = []
    for _ in range(2):
        out = torch.empty(SIZE)
        shards.quantized_reduce_scatter(
            out,
            _values(rank),
            getattr(dist.ReduceOp, op),
            gradients=gradients,
            ranks_per_node=ranks_per_node,
        )
        found.append(out)
    return found


@pytest.mark.parametrize(("op", "ranks_per_node"), [("SUM", 1), ("AVG", 2)])
def test_each_rank_gets_its_part_of_the_sum(op, ranks_per_node):
    total = sum(_values(rank) for rank in range(4)) / (4 if op == "AVG" else 1)
    exact = returned(run_ranks(_scattered, 4, {"nbits": 32, "node_nbits": 32}, op, ranks_per_node))
    for rank, (first, _) in enumerate(exact):
        torch.testing.assert_close(first, total[rank])
    for rank, (first, second) in enumerate(
        returned(run_ranks(_scattered, 4, {}, op, ranks_per_node))
    ):
        assert 0 < (first - total[rank]).norm() / total[rank].norm() < 0.25
        # every call has seeds of its own
        assert not torch.equal(first, second)


def _refused(rank: int) -> list[str]:
    out, x = torch.empty(2 * SIZE), torch.zeros(SIZE)
    part = torch.empty(SIZE // 2)
    gather, scatter = shards.quantized_all_gather, shards.quantized_reduce_scatter
    calls = [
        lambda group: gather(out[1:], x, group=group),
        lambda group: gather(out.double(), x, group=group),
        lambda group: gather(out.half(), x, group=group),
        lambda group: gather(torch.empty(4 * SIZE)[::2], x, group=group),
        lambda group: gather(out, x.clone().requires_grad_(), group=group),
        lambda group: gather(out, x, nbits=5, group=group),
        lambda group: gather(out, x, group_size=3, group=group),
        lambda group: gather(out, x, seed=-1, group=group),
        lambda group: scatter(part[1:], x, group=group),
        lambda group: scatter(part, x, dist.ReduceOp.MAX, group=group),
        lambda group: scatter(part, x, gradients=shards.Gradients(error_feedback=0.5), group=group),
        lambda group: scatter(part, x, ranks_per_node=3, group=group),
        lambda group: scatter(part, x, gradients=None, group=group),
    ]
    words = []
    for call in calls:
        with pytest.raises(SpecError) as error:
            call(None)
        words.append(str(error.value))
        out.fill_(1)
        gather(out, x)
        assert out.eq(0).all()
    return words


def test_what_cannot_be_exchanged_is_refused_in_a_sentence_and_ranks_stay_connected():
    wanted = (
        "give out 6000 values", "make it one of these", "give both the same", "give a contiguous tensor", "x.detach()", "4 or 8",
        "group_size must be an even number", "seed", "pad x to 2 parts of 1499 values", "ReduceOp.SUM or ReduceOp.AVG",
        "remembers nothing", "must divide the 2 ranks", "gradients must be Gradients(...), not None",
    )  # fmt: skip
    for words in returned(run_ranks(_refused, 2)):
        assert len(words) == len(wanted)
        for found, part in zip(words, wanted, strict=True):
            assert part in found


def _one_wrong(rank: int) -> list[str]:
    words = []
    for _ in range(2):
        with pytest.raises(SpecError) as error:
            shards.quantized_all_gather(torch.empty(2 * SIZE - rank), torch.zeros(SIZE))
        words.append(str(error.value))
    shards.quantized_all_gather(torch.empty(2 * SIZE), torch.zeros(SIZE))
    return words


def test_a_rank_that_is_refused_ends_the_call_of_the_others_and_the_next_one_works():
    first, second = returned(run_ranks(_one_wrong, 2))
    assert first == ["rank 1 could not make its call; look at its error"] * 2
    assert all("give out 6000 values" in words for words in second)


def _gather(group: dist.ProcessGroup, size: int = SIZE, **options: Any) -> None:
    out = torch.empty(dist.get_world_size() * size)
    shards.quantized_all_gather(out, torch.ones(size), group, **options)


def _scatter(group: dist.ProcessGroup, op: Any = dist.ReduceOp.SUM, **options: Any) -> None:
    x = torch.ones(dist.get_world_size() * SIZE)
    shards.quantized_reduce_scatter(torch.empty(SIZE), x, op, group, **options)


DIFFERENCES: dict[str, tuple[Any, Any]] = {
    "hadamard": (
        lambda group: _scatter(group, gradients=shards.Gradients(hadamard=False)),
        lambda group: _scatter(group, gradients=shards.Gradients(hadamard=True)),
    ),
    "nbits": (lambda group: _gather(group, nbits=4), lambda group: _gather(group, nbits=8)),
    "group_size": (
        lambda group: _gather(group, group_size=512),
        lambda group: _gather(group, group_size=1024),
    ),
    "x": (lambda group: _gather(group, SIZE), lambda group: _gather(group, SIZE + 1)),
    "op": (_scatter, lambda group: _scatter(group, dist.ReduceOp.AVG)),
    "ranks_per_node": (_scatter, lambda group: _scatter(group, ranks_per_node=2)),
    "function": (_scatter, _gather),
}


def _differ(rank: int) -> dict[str, list[str]]:
    """Calls that differ between ranks: the first of a process group, and after each was agreed on."""
    found: dict[str, list[str]] = {}
    for name, calls in DIFFERENCES.items():
        for agreed in ((), calls, calls[:1]):
            group = dist.new_group(timeout=timedelta(seconds=60))
            for call in agreed:
                call(group)
            words = message_of(partial(calls[rank], group))
            found.setdefault(name, []).append(words)
            wait_for_all(rank, f"{name} {len(agreed)}")
    return found


def test_ranks_that_call_differently_are_told_what_differs_before_values_move():
    for found in returned(run_ranks(_differ, 2)):
        for name, messages in found.items():
            shown = "gradients" if name == "hadamard" else name
            assert len(messages) == 3
            for words in messages:
                assert words.startswith("SpecError: rank 0 made its call with ")
                assert words.endswith(f"; give all ranks the same {shown}")
        assert "hadamard=True" in found["hadamard"][0]


def _leaves(rank: int) -> tuple[list[int], bool]:
    """Return how many process groups there are after each round, and whether the world still works."""
    counts = []
    for _ in range(3):
        group = dist.new_group()
        _gather(group)
        _scatter(group, ranks_per_node=2)
        dist.destroy_process_group(group)
        del group
        counts.append(len(dist.distributed_c10d._world.pg_map))
    out = torch.empty(4 * SIZE)
    shards.quantized_all_gather(out, torch.ones(SIZE))
    dist.destroy_process_group()
    return counts, bool(out.eq(1).all())


def test_a_process_group_that_ends_takes_its_connections_along():
    assert returned(run_ranks(_leaves, 4)) == [([1, 1, 1], True)] * 4


def test_without_ranks_it_is_said():
    with pytest.raises(SpecError, match="call init_process_group first"):
        shards.quantized_all_gather(torch.empty(8), torch.zeros(8))
