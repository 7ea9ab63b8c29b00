"""All-gather and reduce-scatter in few bits, on real ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tersor.errors import ExchangeError, SpecError
from tersor.sites import shards
from tests.sites.ranks import returned, run_ranks

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
    ]
    words = []
    for call in calls:
        with pytest.raises(SpecError) as error:
            call(dist.new_group())
        words.append(str(error.value))
    gather(out, x)
    assert out.eq(0).all()
    return words


def test_what_cannot_be_exchanged_is_refused_in_a_sentence_and_other_groups_work():
    wanted = (
        "pad x", "out.float()", "give both the same", "out.contiguous()", "x.detach()", "4 or 8",
        "group_size must be an even number", "seed", "pad x", "ReduceOp.SUM or ReduceOp.AVG",
        "remembers nothing", "must divide the 2 ranks",
    )  # fmt: skip
    for words in returned(run_ranks(_refused, 2)):
        assert len(words) == len(wanted)
        for found, part in zip(words, wanted, strict=True):
            assert part in found


def _one_wrong(rank: int) -> list[str]:
    words = []
    for _ in range(2):
        with pytest.raises((SpecError, ExchangeError)) as error:
            shards.quantized_all_gather(torch.empty(2 * SIZE - rank), torch.zeros(SIZE))
        words.append(str(error.value))
    return words


def test_a_rank_that_is_refused_ends_the_call_of_the_others():
    first, second = returned(run_ranks(_one_wrong, 2))
    assert "rank 1 failed: SpecError" in first[0]
    assert "pad x" in second[0]
    for words in (first, second):
        assert "group=torch.distributed.new_group()" in words[1]


def test_without_ranks_it_is_said():
    with pytest.raises(SpecError, match="call init_process_group first"):
        shards.quantized_all_gather(torch.empty(8), torch.zeros(8))
