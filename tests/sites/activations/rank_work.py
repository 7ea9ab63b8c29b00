"""What a rank does in the tests of FSDP2 and DDP: gradients, memory, steps and probes of small models."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from tersor.sites import activations
from tersor.sites.activations import region
from tersor.sites.activations.entry import SavedUnchanged
from tests.sites.activations.models import Transformer, all_equal, cnn
from tests.sites.shards.fsdp_rank import message_of

BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
WIDTH = 64
MATRIX_NBYTES = 4 * WIDTH * WIDTH
"""The smallest weight of a linear layer."""


class Twice(Transformer):
    """Runs its first block again behind the last one, when its weights were freed in between."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.tokens(x))
        return self.head(self.norm(self.blocks[0](x)))


def freezes(model: Transformer) -> None:
    model.blocks[0].requires_grad_(False)
    model.blocks[1].up.requires_grad_(False)


def whole(kind: type[Transformer] = Transformer) -> Transformer:
    torch.manual_seed(0)
    return kind(width=WIDTH)


def sharded(
    kind: type[Transformer] = Transformer,
    prepare: Callable[[Transformer], object] = lambda _: None,
    **options: Any,
) -> nn.Module:
    """Return a model that both ranks begin with."""
    model = whole(kind)
    prepare(model)
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


def tokens(rank: int, step: int = 0) -> torch.Tensor:
    return torch.randint(0, 64, (8, 32), generator=torch.Generator().manual_seed(2 * step + rank))


def images(rank: int) -> torch.Tensor:
    return torch.randn(16, 3, 16, 16, generator=torch.Generator().manual_seed(rank))


def loss_of(out: torch.Tensor) -> torch.Tensor:
    return out.float().square().mean()


def gradients(
    model: nn.Module,
    x: torch.Tensor,
    context: AbstractContextManager[object] | None = None,
    between: Callable[[], object] = lambda: None,
) -> list[torch.Tensor]:
    """Return the gradients of the second of two passes, which finds memory that the first one freed."""
    for _ in range(2):
        torch.manual_seed(1)
        model.zero_grad()
        with context or nullcontext():
            out = model(x)
        between()
        loss_of(out).backward()
    found = [p.grad for p in model.parameters() if p.grad is not None]
    return [x.full_tensor() if hasattr(x, "full_tensor") else x.clone() for x in found]


SHARDINGS: dict[str, dict[str, Any]] = {
    "fp32": {"reshard_after_forward": True},
    "fp32, stays gathered": {"reshard_after_forward": False},
    "bf16": {"reshard_after_forward": True, "mp_policy": BF16},
    "bf16, stays gathered": {"reshard_after_forward": False, "mp_policy": BF16},
    "frozen": {"prepare": freezes, "reshard_after_forward": True},
    "used twice": {"kind": Twice, "reshard_after_forward": True},
}


def same_gradients_of_shards(rank: int) -> dict[str, bool]:
    found = {}
    for name, options in SHARDINGS.items():
        exact = gradients(sharded(**options), tokens(rank))
        raw = gradients(sharded(**options), tokens(rank), activations.compressed("raw"))
        found[name] = all_equal(exact, raw)
    model = sharded()
    exact = gradients(model, tokens(rank))
    activations.wrap(model, {"blocks.1": None}, codec="raw")
    found["wrapped"] = all_equal(exact, gradients(model, tokens(rank)))
    model = sharded(prepare=lambda model: activations.wrap(model, codec="raw"))
    found["wrapped before"] = all_equal(exact, gradients(model, tokens(rank)))
    return found


def same_gradients_of_replicas(rank: int) -> dict[str, bool]:
    def replicated(prepare: Callable[[nn.Module], object] = lambda _: None) -> nn.Module:
        model = cnn_of_rank()
        prepare(model)
        return DistributedDataParallel(model)

    x = images(rank)
    exact = gradients(replicated(), x)
    inner = replicated(lambda model: activations.wrap(model, codec="raw"))
    outer = replicated()
    activations.wrap(outer, codec="raw")
    return {
        "context": all_equal(exact, gradients(replicated(), x, activations.compressed("raw"))),
        "wrapped inside": all_equal(exact, gradients(inner, x)),
        "wrapped outside": all_equal(exact, gradients(outer, x)),
        "other ranks count": not all_equal(exact, gradients(cnn_of_rank(), x)),
    }


def cnn_of_rank() -> nn.Module:
    torch.manual_seed(0)
    return cnn()


def live_nbytes() -> int:
    """Return the bytes of all storages that some tensor of Python uses."""
    gc.collect()
    tensors = [x for x in gc.get_objects() if type(x) in (torch.Tensor, nn.Parameter)]
    storages = {x.untyped_storage()._cdata: x.untyped_storage().nbytes() for x in tensors}
    return sum(storages.values())


def unaccounted_nbytes(rank: int, patience: int) -> int:
    """Return what is alive after a forward pass beyond its output and what the report says; look so many times."""
    model = sharded(reshard_after_forward=True)
    compression = activations.compressed("group4")
    gradients(model, tokens(rank), compression)
    model.zero_grad()
    x, before = tokens(rank), live_nbytes()
    with compression:
        out = model(x)
    expected = before + out.nbytes + compression.report().live_nbytes
    for _ in range(patience):
        found = live_nbytes() - expected
        if found < MATRIX_NBYTES:
            break
        # a thread of gloo lets go of what it sent a little later
        time.sleep(0.05)
    loss_of(out).backward()
    return found


class Copies(SavedUnchanged):
    """Keeps copies, as the site must not."""

    @classmethod
    def of(cls, t: torch.Tensor) -> SavedUnchanged:
        return super().of(t.detach().clone())


def keeps_no_weights(rank: int) -> dict[str, int]:
    found = {"ours": unaccounted_nbytes(rank, 20)}
    original = region.SavedUnchanged
    region.SavedUnchanged = Copies  # type: ignore[assignment, misc]
    try:
        found["of copies"] = unaccounted_nbytes(rank, 1)
    finally:
        region.SavedUnchanged = original  # type: ignore[misc]
    return found


def changes_are_seen(rank: int) -> dict[str, Any]:
    """Change weights between forward and backward, as exact tensors and as compressed ones see it."""
    found: dict[str, Any] = {}
    for name in ("exact", "raw"):
        model = sharded(reshard_after_forward=True)

        def halve(model: nn.Module = model) -> None:
            # as an optimizer does; backward gathers what it finds
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(0.5)

        context = activations.compressed("raw") if name == "raw" else None
        found[name, "shards"] = gradients(model, tokens(rank), context, halve)
        model = sharded(reshard_after_forward=False)

        def spoil(model: nn.Module = model) -> None:
            with torch.no_grad():
                model.blocks[1].up.weight.add_(1)

        found[name, "gathered"] = message_of(
            lambda model=model, spoil=spoil, context=context: gradients(
                model, tokens(rank), context, spoil
            )
        )
    return found


def trains(rank: int) -> dict[str, list[float]]:
    found = {}
    for name, context in (("exact", nullcontext()), ("rms", activations.compressed(step=0.5))):
        model = sharded(reshard_after_forward=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses = []
        for step in range(20):
            # each token is the one before it plus one
            x = (tokens(rank, step)[:, :1] + torch.arange(33)) % 64
            with context:
                out = model(x[:, :-1])
            loss = nn.functional.cross_entropy(out.flatten(0, 1), x[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        found[name] = losses
    return found


def _probe(
    compression: activations.Compression,
    compared: nn.Module,
    x: torch.Tensor,
    model: nn.Module | None = None,
) -> list[float]:
    """Probe the gradients of a part of a model, by default of all of it."""

    def forward_and_loss() -> torch.Tensor:
        with compression:
            out = (model or compared)(x)
        return loss_of(out)

    return list(compression.probe(compared, forward_and_loss))


def probes(rank: int) -> dict[str, Any]:
    """Probe a whole model, a sharded one, a part of it, and one under DDP; the first is what the others must find."""
    x, pictures = tokens(rank), images(rank)
    model, plain = sharded(reshard_after_forward=True), whole()
    replica = DistributedDataParallel(cnn_of_rank())
    before = gradients(model, x), gradients(replica, pictures)
    found = {
        "whole": _probe(activations.compressed(step=1.0), plain, x),
        "shards": _probe(activations.compressed(step=1.0), model, x),
        "part": _probe(activations.compressed(step=1.0), model.blocks[1], x, model),
        "part of whole": _probe(activations.compressed(step=1.0), plain.blocks[1], x, plain),
        "lossless": _probe(activations.compressed("raw"), model, x),
        "images": _probe(activations.compressed(step=1.0), cnn_of_rank(), pictures),
        "replica": _probe(activations.compressed(step=1.0), replica, pictures),
    }
    left = [p.grad.full_tensor() for p in model.parameters()]
    after = gradients(model, x), gradients(replica, pictures)
    found["no trace"] = [all_equal(left, before[0]), *map(all_equal, before, after)]
    return found


def balances(rank: int) -> dict[str, Any]:
    """Balance a whole model, a sharded one, and one under DDP; both pairs must find the same."""

    def balance(model: nn.Module, x: torch.Tensor) -> dict[str, float]:
        compression = activations.compressed(step=1.0)

        def forward_and_loss() -> torch.Tensor:
            with compression:
                out = model(x)
            return loss_of(out)

        return compression.balance(model, forward_and_loss)

    x, pictures = tokens(rank), images(rank)
    replica = DistributedDataParallel(cnn_of_rank())
    return {
        "whole": balance(whole(), x),
        "shards": balance(sharded(reshard_after_forward=True), x),
        "images": balance(cnn_of_rank(), pictures),
        "replica": balance(replica, pictures),
    }


def steers(rank: int) -> dict[str, Any]:
    """Return level and score after some steps that are steered by what they predict."""
    found = {}
    for name, model, x in (
        ("shards", sharded(reshard_after_forward=True), tokens(rank)),
        ("replicas", DistributedDataParallel(cnn_of_rank()), images(rank)),
    ):
        compression = activations.compressed(target_score=0.9999, every=1)
        start = compression.report().level
        for _ in range(3):
            gradients(model, x, compression)
        report = compression.report()
        found[name] = start, report.level, report.similarity.score
    return found
