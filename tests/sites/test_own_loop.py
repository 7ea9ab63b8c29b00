"""An exchange in somebody's own training loop: gradients, state, evaluation, bounds by table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tersor import Bound, create
from tersor.errors import ExchangeError, SpecError
from tersor.policy import choice
from tersor.sites.embeddings import AdaptiveBounds, ClassBounds, Decay, Exchange
from tests.checks import assert_bits_equal, assert_within_bound
from tests.sites.ranks import Failure, returned, run_ranks, wait_for_all

WAIT_S, AT_ONCE_S = 40.0, 20.0
NUM_SAMPLES, WIDTH = 8, 4


class Model(torch.nn.Module):
    """A table and a dense layer on top, the same on every rank and in one process."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.table = torch.nn.Parameter(torch.randn(5, WIDTH, generator=generator))
        self.dense = torch.nn.Linear(WIDTH, 1)
        with torch.no_grad():
            self.dense.weight.copy_(torch.randn(1, WIDTH, generator=generator))
            self.dense.bias.zero_()


def ids_and_labels() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return (
        torch.randint(0, 5, (NUM_SAMPLES,), generator=generator),
        torch.randn(NUM_SAMPLES, 1, generator=generator),
    )


def trained_with_ddp(rank: int, options: dict[str, Any]) -> tuple[torch.Tensor | None, ...]:
    """Each rank takes the mean over its own samples; return the gradients of table and layer."""
    model, (ids, labels) = Model(), ids_and_labels()
    dense = DistributedDataParallel(model.dense)
    own = slice(rank * NUM_SAMPLES // 2, (rank + 1) * NUM_SAMPLES // 2)
    with Exchange([0], WIDTH, codec="raw", backward="none", **options) as exchange:
        rows = [model.table[ids]] if rank == 0 else []
        (looked_up,) = exchange(rows, [NUM_SAMPLES // 2] * 2)
        (dense(looked_up) - labels[own]).square().mean().backward()
    return model.table.grad, model.dense.weight.grad


def gradients_in_one_process() -> tuple[torch.Tensor, torch.Tensor]:
    model, (ids, labels) = Model(), ids_and_labels()
    (model.dense(model.table[ids]) - labels).square().mean().backward()
    return model.table.grad, model.dense.weight.grad


@pytest.mark.parametrize("options", [{}, {"gradient_division": False}], ids=["default", "off"])
def test_gradients_of_rows_have_the_scale_of_dense_ones_under_ddp(options):
    table, dense = gradients_in_one_process()
    found = returned(run_ranks(trained_with_ddp, 2, options))
    scale = 1.0 if not options else 2.0
    # one process adds in another order: eight float32 sums of eight terms each
    torch.testing.assert_close(found[0][0], scale * table, rtol=1e-5, atol=1e-6)
    for _, weight in found:
        torch.testing.assert_close(weight, dense, rtol=1e-5, atol=1e-6)


def test_one_process_divides_by_one():
    rows = torch.ones(4, WIDTH, requires_grad=True)
    Exchange([0], WIDTH, codec="raw", backward="none")([rows])[0].sum().backward()
    assert_bits_equal(rows.grad, torch.ones(4, WIDTH))


def looked_up(batch: int = 512, width: int = 8, seed: int = 0) -> torch.Tensor:
    """Return rows that codecs differ on: a few distinct ones, and noise."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(16, width, generator=generator)
    return rows[torch.randint(0, 16, (batch,), generator=generator)]


def auto_exchange() -> Exchange:
    bounds = AdaptiveBounds(decay=Decay("linear", 2.0, end=10))
    return Exchange([0, 0], 8, bounds=bounds, codec="auto", bandwidth_gbit_s=8.0)


def test_an_exchange_goes_on_from_its_saved_state(monkeypatch):
    first = auto_exchange()
    for step in range(4):
        first([looked_up(seed=step), torch.randn(512, 8)])
    state = json.loads(json.dumps(first.state_dict()))
    assert state["iteration"] == 4

    # speeds that would choose otherwise if they were measured again
    monkeypatch.setattr(choice, "median_seconds", lambda task, device: (task(), 1e3)[1])
    second = auto_exchange()
    second.load_state_dict(state)
    assert second.iteration == 4
    assert second.state_dict() == first.state_dict()
    for step in range(4, 1200):
        rows = [looked_up(seed=step), torch.randn(512, 8)]
        for one in (first, second):
            # 1000 iterations later every table was looked at again
            one.plan.remeasure_if_due(one.tables, rows, step)
        assert [first.plan.codec(t, step) for t in (0, 1)] == [
            second.plan.codec(t, step) for t in (0, 1)
        ]


def test_a_decay_is_part_of_the_state():
    first = Exchange([0], 8, bounds=AdaptiveBounds(decay=Decay("linear", 2.0, end=10)))
    for _ in range(5):
        first([looked_up()])
    other = Exchange([0], 8, bounds=AdaptiveBounds(decay=Decay.off()))
    other.load_state_dict(first.state_dict())
    assert other.plan.codec(0, other.iteration) == first.plan.codec(0, 5)
    assert other.plan.codec(0, 5).bound == Bound.relative(0.03 * 1.5)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({}, "no saved state"),
        ({"iteration": -1, "codecs": ["rows"], "choices": {}, "decay": None}, "from 0, not -1"),
        ({"iteration": 3}, "no saved state"),
        (None, "no saved state"),
        ([1, 2], "no saved state"),
        (
            {
                "iteration": 3,
                "codecs": ["rows"],
                "decay": None,
                "choices": {"7": [{"ratio": 2.0, "encode_gbps": 1.0, "decode_gbps": 1.0}]},
            },
            "table 7, which this rank does not own",
        ),
        ({"iteration": 3, "codecs": ["flat"], "choices": {}, "decay": None}, "codec flat, this"),
        ({"iteration": 3, "codecs": ["rows"], "choices": [], "decay": None}, "no saved state"),
        (
            {"iteration": 3, "codecs": ["rows"], "choices": {"0": [{}]}, "decay": None},
            "no saved choice",
        ),
    ],
)
def test_what_is_no_state_of_the_exchange_changes_nothing(state, words):
    exchange = Exchange([0], 8, bounds=0.03)
    before = exchange.state_dict()
    with pytest.raises(SpecError, match=words):
        exchange.load_state_dict(state)
    assert exchange.state_dict() == before


def test_an_exchange_that_was_closed_is_not_used_again():
    with Exchange([0], 8, bounds=0.03) as exchange:
        pending = exchange.start([looked_up()])
    for use in (pending.wait, lambda: exchange([looked_up()])):
        with pytest.raises(ExchangeError, match="make a new one"):
            use()


def errs_between_start_and_wait(rank: int) -> tuple[str, str, float]:
    """Rank 1 fails in its own code while rows travel, and lives on."""
    group = dist.new_group(timeout=timedelta(seconds=WAIT_S))
    begin = time.monotonic()
    found = ("", "")
    columns = {} if rank == 1 else {"clicks": 1}
    try:
        with Exchange([0, 1], 8, bounds=0.03, group=group) as exchange:
            pending = exchange.start([looked_up(4)])
            assert columns["clicks"]
            pending.wait()
            exchange([looked_up(4)])
    except (KeyError, ExchangeError) as error:
        found = (type(error).__name__, str(error))
    waited = time.monotonic() - begin
    wait_for_all(rank)
    return (*found, waited)


def test_an_error_in_the_block_of_an_exchange_ends_it_on_every_rank_at_once():
    peer, own = returned(run_ranks(errs_between_start_and_wait, 2))
    assert own[0] == "KeyError"
    assert peer[0] == "ExchangeError"
    assert "rank 1 failed: KeyError: 'clicks'" in peer[1]
    assert max(own[2], peer[2]) < AT_ONCE_S


FAILING_SCRIPT = """
import torch, torch.distributed as dist
from tersor.sites.embeddings import Exchange

dist.init_process_group("gloo")
exchange = Exchange([0, 1], 8, bounds=0.03)
exchange([torch.ones(4, 8 - dist.get_rank())])
"""


def test_the_first_line_of_a_failed_job_says_which_rank_failed_and_why(tmp_path):
    script = tmp_path / "own_loop.py"
    script.write_text(FAILING_SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if "compiling kernels" not in line]
    assert lines[0].startswith("rank 1 failed: SpecError: rows of table 1 must be")
    # a rank that hears of it names it too
    errors = [line for line in lines if "ExchangeError: " in line]
    assert errors
    assert all("rank 1 failed: SpecError" in line for line in errors)


def evaluated(rank: int) -> dict[str, Any]:
    """Train, evaluate, train; return rows and gradients of the evaluation and what was counted."""
    decay = AdaptiveBounds(decay=Decay("linear", 2.0, end=4))
    with Exchange([0, 1], 8, bounds=decay, gradient_division=False) as exchange:
        exchange([looked_up(4, seed=rank)])
        before = exchange.stats.to_dict(), exchange.iteration
        rows = looked_up(4, seed=rank).requires_grad_()
        with exchange.uncompressed():
            out = exchange([rows])
        sum((0.1 * y).sum() for y in out).backward()
        after = exchange.stats.to_dict(), exchange.iteration
        exchange([looked_up(4, seed=rank)])
    return {"out": [y.detach() for y in out], "grad": rows.grad, "same": before == after}


def test_evaluation_is_exact_and_not_counted():
    for rank, one in enumerate(returned(run_ranks(evaluated, 2))):
        for table, y in enumerate(one["out"]):
            assert_bits_equal(y, looked_up(4, seed=table)[2 * rank : 2 * rank + 2])
        assert_bits_equal(one["grad"], torch.full((4, 8), 0.1))
        assert one["same"]


def resumed_at_different_iterations(rank: int) -> None:
    with Exchange([0, 1], 8, bounds=0.03) as exchange:
        exchange.load_state_dict({**exchange.state_dict(), "iteration": 90 * rank})
        exchange([looked_up(4)])


def test_ranks_that_were_resumed_at_different_iterations_hear_of_it():
    for one in run_ranks(resumed_at_different_iterations, 2):
        assert one.name == "ExchangeError"
        assert "(iteration 0)" in one.message
        assert "(iteration 90)" in one.message


def ends_early(rank: int) -> str:
    """Rank 1 ends its program in the block, as a finished one does."""
    found = ""
    try:
        with Exchange([0, 1], 8, bounds=0.03) as exchange:
            if rank == 1:
                sys.exit(0)
            exchange([looked_up(4)])
    except (SystemExit, ExchangeError) as error:
        found = str(error)
    wait_for_all(rank)
    return found


def test_a_rank_that_ends_well_is_not_said_to_have_failed():
    peer, _ = returned(run_ranks(ends_early, 2))
    assert "rank 1 closed its exchange; this ended the" in peer


def owners_differ(rank: int) -> None:
    Exchange([*[0] * 119, rank], 8)


def test_long_arguments_are_shown_where_they_differ():
    for one in run_ranks(owners_differ, 2):
        assert "0, 0, 0)," in one.message
        assert "0, 0, 1);" in one.message


def one_rank_evaluates(rank: int) -> None:
    with Exchange([0, 1], 8, bounds=0.03) as exchange:
        if rank == 0:
            with exchange.uncompressed():
                exchange([looked_up(4)])
        else:
            exchange([looked_up(4)])


def test_ranks_that_do_not_all_evaluate_hear_of_it():
    for one in run_ranks(one_rank_evaluates, 2):
        assert one.name == "ExchangeError"
        assert "uncompressed forward exchange 0" in one.message


NAMES = ("user", "item", "country")


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({"user": 0.01, "item": 0.02, "country": 0.04}, [0.01, 0.02, 0.04]),
        ({0: 0.01, "item": 0.02, 2: 0.04}, [0.01, 0.02, 0.04]),
        ({"user": 0.01, "default": 0.04}, [0.01, 0.04, 0.04]),
        (AdaptiveBounds(tight={"country"}, loose={0}, decay=Decay.off()), [0.05, 0.03, 0.01]),
        (AdaptiveBounds(tables={"item": 0.2}, decay=Decay("constant", 2.0, 9)), [0.06, 0.4, 0.06]),
    ],
    ids=["names", "mixed", "default", "classes", "decay"],
)
def test_bounds_are_given_by_number_or_name(bounds, expected):
    exchange = Exchange([0, 0, 0], 8, names=NAMES, bounds=bounds, codec="flat")
    rows = [torch.randn(64, 8) for _ in NAMES]
    for x, y, value in zip(rows, exchange(rows), expected, strict=True):
        limit = Bound.relative(value).resolve(float(x.min()), float(x.max()))
        assert_within_bound(x, y.detach(), limit)
        # and uses it: a bound of another table would be far from this one
        assert float((x - y.detach()).abs().max()) > 0.8 * limit


def test_a_bound_of_a_table_may_be_absolute():
    bounds = {"user": Bound.absolute(1e-3), "default": 0.1}
    exchange = Exchange([0, 0], 8, names=("user", "item"), bounds=bounds)
    rows = [torch.randn(64, 8) for _ in range(2)]
    assert_within_bound(rows[0], exchange(rows)[0].detach(), 1e-3)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        ({"user": 0.01}, "none for table 'item'; give it one, or 'default'"),
        (
            {"usr": 0.01, "default": 0.1},
            "'usr', but tables are numbered 0 to 2 and named user, item",
        ),
        ({3: 0.01, "default": 0.1}, "table 3, but"),
        ({0: 0.01, "user": 0.01, "default": 0.1}, "two bounds"),
        ({"user": -1.0, "default": 0.1}, "table 'user' has no possible bound"),
        ({"user": "tight", "default": 0.1}, "table 'user' has no possible bound"),
        ({1.5: 0.01, "default": 0.1}, "by number from 0 or by name, not 1.5"),
        (AdaptiveBounds(tight={"usr"}), "'usr', but"),
    ],
)
def test_bounds_of_tables_that_are_none_are_refused(bounds, words):
    with pytest.raises(SpecError, match=words):
        Exchange([0, 0, 0], 8, names=NAMES, bounds=bounds)


@pytest.mark.parametrize(
    ("names", "words"),
    [(("a", "b"), "3 tables need as many names"), (("a", "a", "b"), "all different")],
)
def test_names_tell_tables_apart(names, words):
    with pytest.raises(SpecError, match=words):
        Exchange([0, 0, 0], 8, names=names)


@pytest.mark.parametrize(
    "bounds", [2.0, Bound.relative(1.0), {"default": 0.1, "item": 2.0}, ClassBounds(1.0, 1.0, 1.0)]
)
def test_a_bound_as_wide_as_the_values_warns(bounds):
    given = AdaptiveBounds(bounds=bounds) if isinstance(bounds, ClassBounds) else bounds
    with pytest.warns(UserWarning, match="off by its whole range"):
        Exchange([0, 0], 8, names=("user", "item"), bounds=given)


def differs(rank: int, options: dict[str, Any]) -> None:
    Exchange([0, 1], 8, **(options if rank else {}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bounds": 0.5}, "bounds="),
        ({"codec": "flat"}, "codec="),
        ({"backward": "none"}, "backward="),
        (
            {"gradient_division": False},
            "with gradient_division=True, rank 1 with gradient_division=",
        ),
        ({"bandwidth_gbit_s": 16.0}, "bandwidth_gbit_s=10.0, rank 1 with bandwidth_gbit_s=16.0"),
        ({"dtype": torch.float16}, "dtype=torch.float32, rank 1 with dtype=torch.float16"),
        ({"names": ["a", "b"]}, "names="),
    ],
)
def test_the_argument_that_differs_is_named(options, words):
    for one in run_ranks(differs, 2, options):
        assert isinstance(one, Failure)
        assert one.name == "SpecError"
        assert words in one.message
        assert "\n" not in one.message


def peer_died_before(rank: int) -> None:
    # a rank that dies while its peer still connects breaks that, which is torch's to say
    wait_for_all(rank)
    if rank == 1:
        os._exit(1)
    time.sleep(1.0)
    Exchange([0, 1], 8, bounds=0.03)


def test_an_exchange_with_a_peer_that_died_is_our_error():
    found, gone = run_ranks(peer_died_before, 2)
    assert gone is None
    assert found.name == "ExchangeError"
    assert "could not reach all other ranks" in found.message


COMPILED_LATE = """
import torch
from tersor import Bound, create
from tersor.kernels.runtime.compile_notice import on_compile
from tersor.sites.embeddings import Exchange

import sys
codec, backward = sys.argv[1:]
late = []
exchange = Exchange([0] * 3, 16, bounds=0.03, codec=codec, backward=backward)
with on_compile(late.append):
    for _ in range(2):
        table = torch.randn(100, 16)
        rows = [table[torch.randint(0, 100, (n,))].requires_grad_() for n in (1, 64, 4096)]
        sum(y.square().sum() for y in exchange(rows)).backward()
print(len(late))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codec", "backward"), [("rows", "half"), ("flat", "group8"), ("auto", "none")]
)
def test_no_kernel_is_compiled_after_an_exchange_was_made(codec, backward, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", COMPILED_LATE, codec, backward],
        capture_output=True, text=True, timeout=500, check=True,
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout.strip() == "0"


def test_a_codec_object_may_send_under_bounds_by_table():
    codec = create("flat", bound=Bound.relative(1.0))
    exchange = Exchange([0], 8, codec=codec, bounds={0: 0.01})
    rows = torch.randn(64, 8)
    limit = 0.01 * float(rows.max() - rows.min())
    assert_within_bound(rows, exchange([rows])[0].detach(), limit)


def sampled(rank: int) -> AdaptiveBounds:
    """Each rank knows one table; both know a third, which rank 1 finds crowded."""
    few, many = looked_up(64), torch.randn(512, 8)
    own = {"user": few} if rank == 0 else {"item": many}
    num_rows = {"user": 50_000} if rank == 0 else {"item": 1_000}
    crowded = torch.cat([torch.ones(1, 8), -torch.ones(1, 8), 1e-4 * many[:300]])
    shared = crowded if rank == 1 else many
    return AdaptiveBounds.from_sample(
        {**own, "country": shared}, {**num_rows, "country": 1_000}, decay=Decay.off()
    )


def test_ranks_find_the_classes_of_all_tables_together():
    for policy in returned(run_ranks(sampled, 2)):
        assert policy.tight == {"user", "country"}
        assert policy.table_class("item") == "base"


def samples_as_lists(rank: int, num_rows: list[int] | None) -> None:
    AdaptiveBounds.from_sample([torch.randn(64, 8)] * 2, num_rows and [n + rank for n in num_rows])


@pytest.mark.parametrize(
    ("num_rows", "words"),
    [(None, "which tables their samples are of"), ([5000, 5000], "5000 rows on one rank and 5001")],
)
def test_lists_of_different_tables_are_not_taken_for_the_same(num_rows, words):
    for one in run_ranks(samples_as_lists, 2, num_rows):
        assert one.name == "SpecError"
        assert words in one.message


def one_sample_is_empty(rank: int) -> None:
    AdaptiveBounds.from_sample({rank: torch.ones(4 * rank, 8)})


def test_a_rank_that_cannot_class_its_tables_keeps_nobody_waiting():
    own, peer = run_ranks(one_sample_is_empty, 2)
    assert "sample of table 0 is empty" in own.message
    assert (peer.name, "rank 0 could not class its tables" in peer.message) == ("SpecError", True)
