"""What goes wrong between ranks, and with TorchRec itself, is said on every rank."""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tersor.errors import TersorError
from tests.sites.ranks import Failure, run_ranks
from tests.sites.test_wire import wait_for_all
from tests.torchrec.tables import Table, samples_of

TABLES = (Table(0, 8, (0,)), Table(1, 16, (1,)), Table(2, 4, (0,)))
BATCH = 6


def step(rank: int, sharded: Any, is_pooled: bool = True) -> None:
    from tests.torchrec import models

    out = sharded.model(models.as_features(samples_of(TABLES, rank, BATCH)))
    rows = out.values() if is_pooled else torch.cat([x.values() for x in out.values()])
    rows.sum().backward()


def lied_to(rank: int, fault: str) -> tuple[str, str]:
    """Rank 1 sends rank 0 something wrong; return what this rank raised while all others lived."""
    from tests.torchrec import models

    sharded = models.make(TABLES, {"bounds": 0.03, "backward": "half"})
    step(rank, sharded)
    if rank == 1:
        plant(fault, sharded.codecs._wire.group._group)
    try:
        for _ in range(3):
            step(rank, sharded)
    except TersorError as error:
        wait_for_all(rank)
        return type(error).__name__, str(error)
    return "nothing", ""


def plant(fault: str, group: Any) -> None:
    send = dist.all_to_all_single

    def altered(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("group") is not group:
            return send(*args, **kwargs)
        if fault == "dies":
            os._exit(1)
        if len(args) < 4:
            # the turns of the ranks, which are in step
            return send(*args, **kwargs)
        out, sent, receive_sizes, send_sizes = args
        sent = sent.clone()
        if fault == "size" and sent.dtype == torch.int64:
            sent[0] = 1 << 50
        if fault == "rows" and sent.dtype == torch.int64:
            sent[1] += 1
        if fault == "bytes" and sent.dtype == torch.uint8:
            sent[: send_sizes[0] : 5] ^= 0x55
        return send(out, sent, receive_sizes, send_sizes, **kwargs)

    dist.all_to_all_single = altered


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("size", "rank 1 announced an impossible chunk"),
        ("rows", "rank 1 announced a chunk of 7 rows, 6 are expected"),
        ("bytes", ""),
    ],
)
def test_a_lie_is_heard_of_on_every_rank_while_all_live(fault, words):
    found = run_ranks(lied_to, 3, fault)
    assert not any(one is None or isinstance(one, Failure) for one in found), found
    assert found[0][0] == "CorruptDataError"
    assert words in found[0][1]
    assert [name for name, _ in found[1:]] == ["ExchangeError"] * 2


def test_a_dead_peer_is_heard_of():
    found = run_ranks(dies, 3)
    assert found[1] is None
    for one in (found[0], found[2]):
        assert isinstance(one, Failure)
        assert one.name == "ExchangeError"
        assert "a peer left, failed or timed out" in one.message


def dies(rank: int) -> None:
    from tests.torchrec import models

    sharded = models.make(TABLES, {"bounds": 0.03, "backward": "half"})
    step(rank, sharded)
    if rank == 1:
        plant("dies", sharded.codecs._wire.group._group)
    step(rank, sharded)


def asks_otherwise(function: Callable[..., Any], how: str) -> Any:
    """Return one of TorchRec's functions with its two questions for sizes swapped, or with one less."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    tree.body[0].decorator_list.clear()
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            asks = [
                k
                for k, line in enumerate(node.body)
                if isinstance(line, ast.Assign) and "calc_quantized_size" in ast.unparse(line)
            ]
            if len(asks) == 2:
                first, second = (node.body[k] for k in asks)
                if how == "swapped":
                    node.body[asks[0]], node.body[asks[1]] = second, first
                else:
                    # what our codecs answer, without asking them
                    first.value = ast.parse("[0, 0]").body[0].value
                names = dict(function.__globals__)
                exec(compile(tree, "planted", "exec"), names)
                return staticmethod(names[function.__name__])
    raise AssertionError(f"{function} asks for no sizes")


def changed_torchrec(rank: int, kind: str, method: str, how: str) -> None:
    from torchrec.distributed import comm_ops

    from tests.torchrec import models

    is_pooled = "Pooled" in kind
    tables = TABLES if is_pooled else [Table(t.number, 8, t.owners) for t in TABLES]
    sharded = models.make(tables, {"bounds": 0.03, "backward": "half"}, is_pooled)
    step(rank, sharded, is_pooled)
    owner = getattr(comm_ops, kind)
    setattr(owner, method, asks_otherwise(getattr(owner, method), how))
    step(rank, sharded, is_pooled)


@pytest.mark.parametrize("how", ["swapped", "one less"])
@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("All2All_Pooled_Req", "forward"),
        ("All2All_Pooled_Wait", "backward"),
        ("All2All_Seq_Req", "forward"),
        ("All2All_Seq_Req_Wait", "backward"),
    ],
)
def test_a_torchrec_that_asks_in_another_order_is_refused_in_one_sentence(kind, method, how):
    found = run_ranks(changed_torchrec, 2, kind, method, how)
    assert all(isinstance(one, Failure) for one in found)
    names = [one.name for one in found]
    assert set(names) <= {"BackendUnavailableError", "ExchangeError"}, found
    message = found[names.index("BackendUnavailableError")].message
    assert message.startswith(
        "torchrec 1.8.0 calls its codecs in an order that tersor does not know"
    )
    assert "install torchrec 1.8" in message
    assert "\n" not in message


OWNERS: dict[str, tuple[int, ...]] = {"row-wise": (), "table-row-wise": (0, 0)}


def misused(rank: int, how: str) -> None:
    from tersor.sites.embeddings.torchrec import torchrec_codecs
    from tests.torchrec import models

    # a rank that fails at once would fail the other one's connections
    dist.barrier()
    names = [table.name for table in TABLES]
    if how == "unknown table":
        names.pop()
    given: dict[str, Any] = {"backward": "half"}
    if rank == 0:
        given |= {"differs": {"backward": "none"}, "other bounds": {"bounds": 0.1}}.get(how, {})
    codecs = torchrec_codecs(names, **given)
    tables = [replace(table, owners=OWNERS.get(how, table.owners)) for table in TABLES]
    module = torch.nn.Sequential(models.collection(tables))
    model = models.shard(module, "0", tables, None if how == "not given" else codecs)
    if how != "not attached":
        codecs.attach(model)
    if how == "dtype":
        codecs._wire.dtype = torch.float16
    features = models.as_features(samples_of(TABLES, rank, BATCH))
    if how == "own batches":
        features = own_batches(features)
    model(features).values()


def own_batches(features: Any) -> Any:
    """Return features that have batches of their own."""
    return type(features)(
        keys=features.keys(),
        values=features.values(),
        lengths=features.lengths(),
        stride_per_key_per_rank=[[BATCH]] * len(features.keys()),
        inverse_indices=(features.keys(), torch.arange(BATCH).expand(len(features.keys()), -1)),
    )


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("not attached", r"call attach\(model\)"),
        ("not given", "give them to its sharder"),
        ("row-wise", "shard tables table-wise or column-wise"),
        ("table-row-wise", "sharded by TwRwPooledEmbeddingSharding"),
        ("unknown table", "table 'table2' of the model was not given"),
        ("differs", "give all ranks the same backward"),
        ("other bounds", "give all ranks the same bounds"),
        ("dtype", "give dtype="),
        ("own batches", "features with batches of their own"),
    ],
)
def test_misuse_is_refused_with_the_way_out(how, words):
    found = run_ranks(misused, 2, how)
    for one in found:
        assert isinstance(one, Failure)
        with pytest.raises(AssertionError, match=words):
            raise AssertionError(one.message)
        assert one.name == "SpecError"
