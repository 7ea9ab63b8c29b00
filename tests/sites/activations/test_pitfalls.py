"""What breaks hooks of saved tensors elsewhere works here, or says why not."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tersor import Bound, create
from tersor.sites import activations
from tersor.sites.activations import entry as entry_module
from tersor.sites.activations import window as window_module
from tests.sites.activations.models import Block, all_equal, cnn, gradients, images


def _lossy(**options) -> activations.Compression:
    return activations.compressed(bound=Bound.relative(0.01), **options)


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)
    )


@pytest.mark.parametrize("codec", ["raw", "group4"])
def test_a_change_in_place_raises_as_without_hooks(codec) -> None:
    layer = nn.Linear(64, 64)
    for context in (torch.enable_grad(), activations.compressed(codec)):
        with context:
            y = torch.relu(layer(torch.randn(64, 64)))
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_a_change_in_place_of_what_is_kept_exactly_raises() -> None:
    x = torch.randn(64, 64, requires_grad=True)
    with _lossy():
        y = (x * 2).exp()
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_a_change_through_a_view_raises() -> None:
    layer = nn.Linear(64, 64)
    with _lossy():
        y = torch.relu(layer(torch.randn(64, 64)))
    y.detach().view(-1)[:3].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_the_innermost_of_nested_contexts_counts() -> None:
    model = _mlp()
    outer, inner = activations.compressed("raw"), activations.compressed("group4")
    with outer:
        hidden = model[:2](torch.randn(64, 64))
        with inner:
            out = model[2:](hidden)
    out.sum().backward()
    assert "group4" not in outer.report().forms
    assert "group4" in inner.report().forms


def test_a_context_may_be_entered_again_inside_itself() -> None:
    model, x = _mlp(), torch.randn(64, 64)
    exact = gradients(model, model, x)
    compression = activations.compressed("raw")
    with compression:
        assert all_equal(exact, gradients(model, model, x, compression))
    assert compression.report().num_steps == 1


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointed_blocks_are_recomputed_and_not_compressed(use_reentrant) -> None:
    blocks = nn.ModuleList([Block(), Block()])
    first = nn.Linear(32, 32)
    x = torch.randn(8, 32, 32)

    def forward(x: torch.Tensor) -> torch.Tensor:
        x = first(x)
        x = checkpoint(blocks[0], x, use_reentrant=use_reentrant)
        return blocks[1](x)

    model = nn.ModuleList([first, blocks])
    exact = gradients(forward, model, x)
    compression = activations.compressed("raw")
    assert all_equal(exact, gradients(forward, model, x, compression))
    whole = activations.compressed("raw")
    gradients(lambda x: blocks[1](blocks[0](first(x))), model, x, whole)
    assert compression.report().original_nbytes < 0.7 * whole.report().original_nbytes


def test_backward_may_run_twice() -> None:
    model, x = cnn(), images()
    compression = _lossy()
    with compression:
        out = model(x)
    loss = out.square().mean()
    weights = list(model.parameters())
    once = torch.autograd.grad(loss, weights, retain_graph=True)
    assert all_equal(list(once), list(torch.autograd.grad(loss, weights)))


def test_second_derivatives_see_exact_gradients() -> None:
    x = torch.randn(64, 64)
    found = []
    for context in (torch.enable_grad(), activations.compressed("raw"), _lossy()):
        torch.manual_seed(0)
        layer = nn.Linear(64, 64)
        with context:
            y = torch.tanh(layer(x))
            (first,) = torch.autograd.grad(y.square().sum(), layer.weight, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), layer.weight)
        found.append(second)
    assert torch.equal(found[0], found[1])
    # an absolute error in gradients would have removed most of them
    assert functional.cosine_similarity(found[0].flatten(), found[2].flatten(), 0) > 0.99


def test_a_lazily_negated_view_is_another_tensor() -> None:
    found = []
    for context in (torch.enable_grad(), activations.compressed("raw")):
        torch.manual_seed(0)
        leaf = torch.randn(64, 64, dtype=torch.complex64, requires_grad=True)
        weights = [torch.ones(3, 64, requires_grad=True) for _ in range(2)]
        with context:
            z = leaf * 1
            assert z.conj().imag.is_neg()
            out = functional.linear(z.imag, weights[0])
            out = out + functional.linear(z.conj().imag, weights[1])
        found.append(torch.autograd.grad(out.sum(), weights))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_second_derivatives_of_attention_say_that_there_are_none() -> None:
    q = torch.randn(2, 4, 32, 32, requires_grad=True)
    with _lossy():
        out = functional.scaled_dot_product_attention(q, q, q)
    (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(
        RuntimeError, match="no second derivative; compute what you differentiate twice"
    ):
        first.sum().backward()


def test_weights_are_never_encoded_even_as_views_frozen_or_cast() -> None:
    frozen = nn.Linear(64, 64).requires_grad_(False)
    tied, unfolded = nn.Linear(64, 64), nn.Linear(64, 64)
    x = torch.randn(64, 64, requires_grad=True)
    with _lossy():
        y = frozen(x * 2)
        y = functional.linear(y, tied.weight.t())
        y = y @ tied.weight
        y = y @ unfolded.weight.unfold(0, 64, 64)[0]
    exact = torch.autograd.grad(y.sum(), x)[0]
    # the path to x goes through weights alone, which are exact
    plain = functional.linear(frozen(x * 2), tied.weight.t()) @ tied.weight
    plain = plain @ unfolded.weight.unfold(0, 64, 64)[0]
    assert torch.equal(exact, torch.autograd.grad(plain.sum(), x)[0])


def test_buffers_and_inputs_that_others_hold_are_not_copied() -> None:
    conv, x = nn.Conv2d(3, 8, 3), images()
    adjacency = torch.randn(64, 64)
    features = torch.randn(64, 64, requires_grad=True)
    compression = _lossy()
    with compression:
        outputs = conv(x), adjacency @ (features * 1), (adjacency * 1) @ (features * 1)
    forms = compression.report().forms
    assert forms["held by others"].original_nbytes == x.nbytes + adjacency.nbytes
    # a factor of the gradient that flows on stays exact, whoever holds it
    assert forms["exact: matmul"].original_nbytes == adjacency.nbytes
    del outputs


def test_an_input_that_nobody_else_holds_is_encoded() -> None:
    conv = nn.Conv2d(3, 8, 3)
    compression = _lossy()
    with compression:
        out = conv(images() * 1)
    assert compression.report().forms["ans"].num_tensors == 1
    assert "held by others" not in compression.report().forms
    out.sum().backward()


def test_nothing_leaks_where_backward_never_runs() -> None:
    model = cnn()
    for codec in ("raw", "group4"):
        compression = activations.compressed(codec)
        with compression:
            hidden = model[:3](images())
            out = model[3:](hidden)
        alive = StorageWeakRef(hidden.untyped_storage())
        del hidden, out
        gc.collect()
        assert alive.expired()
        assert compression.report().live_nbytes == 0


def test_nothing_is_held_after_backward() -> None:
    model = cnn()
    compression = _lossy()
    for _ in range(2):
        with compression:
            out = model(images())
        assert compression.report().live_nbytes > 0
        out.sum().backward()
        del out
        assert compression.report().live_nbytes == 0


def test_integers_masks_and_tiny_tensors_come_back_exactly() -> None:
    table = nn.Embedding(100, 32)
    tokens = torch.randint(0, 100, (64, 64))
    keep = torch.rand(64, 64, 32) > 0.5
    found = []
    for context in (torch.enable_grad(), _lossy()):
        table.zero_grad()
        with context:
            rows = table(tokens.clone())
            y = torch.where(keep.clone(), rows, torch.zeros(()))
        y.backward(torch.ones_like(y))
        found.append(table.weight.grad.clone())
    assert torch.equal(*found)


def test_masks_take_one_bit_and_integers_as_many_as_they_need() -> None:
    table = nn.Embedding(100, 32)
    compression = _lossy()
    with compression:
        rows = table(torch.randint(0, 100, (64, 64)))
        outputs = functional.dropout(rows, 0.5)
    forms = compression.report().forms
    del outputs
    assert forms["integers"].ratio == pytest.approx(64 / 7, rel=0.01)
    assert forms["masks"].ratio == pytest.approx(32, rel=0.01)


def test_disabled_hooks_say_so_and_leave_nothing_behind() -> None:
    compression = _lossy()
    with (
        torch.autograd.graph.disable_saved_tensors_hooks("not in here"),
        pytest.raises(RuntimeError, match="not in here"),
        compression,
    ):
        pass
    with compression:
        torch.relu(nn.Linear(64, 64)(torch.randn(64, 64)))
    assert "ans" in compression.report().forms


def test_functional_transforms_say_that_they_have_no_hooks() -> None:
    with _lossy(), pytest.raises(RuntimeError, match="saved tensor hooks"):
        torch.func.grad(lambda x: x.square().sum())(torch.randn(8))


def test_what_a_function_of_ones_own_saves_stays_exact() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient * x.exp()

    x = torch.randn(64, 64, requires_grad=True)
    compression = _lossy()
    with compression:
        y = Scaled.apply(x * 1)
    (found,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(found, x.detach().exp())
    assert "exact: unknown function" in compression.report().forms


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_sparse_tensors_pass() -> None:
    features = torch.randn(64, 64, requires_grad=True)
    sparse = (torch.rand(64, 64) > 0.9).float()
    for layout in (sparse.to_sparse_csr(), sparse.to_sparse_coo()):
        compression = _lossy()
        with compression:
            y = torch.sparse.mm(layout, features * 1)
        (found,) = torch.autograd.grad(y.sum(), features)
        assert torch.equal(found, sparse.t() @ torch.ones(64, 64))


def test_values_of_no_dimension_and_empty_tensors_pass() -> None:
    x = torch.randn((), requires_grad=True)
    with _lossy():
        y = torch.tanh(x * 2) * torch.tanh(x) + torch.relu(x.expand(0)).sum()
    y.backward()
    assert x.grad is not None


class _Forgetful(nn.Module):
    """Has no use for the output of a layer behind the next line, so that the next one may have its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(20)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for layer in self.layers:
            total = total + torch.tanh(layer(x) * 1.5).mean()
        return total


def test_memory_that_is_given_away_again_is_not_taken_for_the_same() -> None:
    model, x = _Forgetful(), torch.randn(64, 64)
    exact = gradients(model, model, x)
    assert all_equal(exact, gradients(model, model, x, activations.compressed("raw")))


def test_without_weak_references_the_same_address_gives_wrong_gradients(monkeypatch) -> None:
    # the fault that the test above guards against
    def by_address(key: Callable[..., tuple[object, ...]]) -> Callable[..., tuple[object, ...]]:
        return lambda t: (t.untyped_storage().data_ptr(), *key(t)[1:])

    monkeypatch.setattr(entry_module.StorageWeakRef, "expired", lambda _: False)
    for name in ("key_of", "flat_key"):
        monkeypatch.setattr(entry_module, name, by_address(getattr(entry_module, name)))
    model, x = _Forgetful(), torch.randn(64, 64)
    exact = gradients(model, model, x)

    def finds_equal(attempt: int) -> bool:
        # an allocator may find other memory, depending on what else is free
        free = [torch.empty(64, 64 + k) for k in range(attempt)]
        del free[::2]
        return all_equal(exact, gradients(model, model, x, activations.compressed("raw")))

    assert not all(map(finds_equal, range(50)))


def test_a_weight_that_gets_the_memory_of_a_freed_one_is_told_apart() -> None:
    """As ``fully_shard`` does: weights have memory in their own layer's passes alone."""
    layers = [nn.Linear(96, 96, bias=False) for _ in range(32)]
    values = [layer.weight.detach().clone() for layer in layers]
    storages = [layer.weight.untyped_storage() for layer in layers]
    addresses = []

    def forward(x: torch.Tensor) -> torch.Tensor:
        for k, layer in enumerate(layers):
            _gather(layer.weight, values[k])
            addresses.append(storages[k].data_ptr())
            x = torch.tanh(layer(x))
            storages[k].resize_(0)
        return x

    found = []
    for context in (torch.enable_grad(), activations.compressed("raw")):
        for storage in storages:
            storage.resize_(0)
        with context:
            out = forward(torch.ones(8, 96))
        for layer, value in zip(layers, values, strict=True):
            _gather(layer.weight, value)
        found.append(torch.autograd.grad(out.sum(), [layer.weight for layer in layers]))
    # of the second pass, which is the one that hooks saw
    assert len(set(addresses[-32:])) < 32
    assert all_equal(*map(list, found))


def _gather(weight: torch.Tensor, values: torch.Tensor) -> None:
    weight.untyped_storage().resize_(values.nbytes)
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(weight):
        weight.copy_(values)


@pytest.mark.parametrize("position", ["inside", "outside"])
def test_a_loss_inside_the_context_stays_exact(position) -> None:
    head = nn.Linear(64, 1000)
    x, labels = torch.randn(64, 64), torch.randint(0, 1000, (64,))
    compression = _lossy()
    with compression:
        logits = head(torch.relu(x))
        if position == "inside":
            loss = functional.cross_entropy(logits, labels)
    if position == "outside":
        loss = functional.cross_entropy(logits, labels)
    (found,) = torch.autograd.grad(loss, head.bias)
    exact = functional.cross_entropy(head(torch.relu(x)), labels)
    assert torch.equal(found, torch.autograd.grad(exact, head.bias)[0])
    assert ("exact: softmax" in compression.report().forms) == (position == "inside")


def test_softmax_and_statistics_stay_exact() -> None:
    x = torch.randn(64, 32, 32, requires_grad=True)
    compression = _lossy()
    with compression:
        y = torch.softmax(x * 1, -1)
        z = y @ (x * 1)
        norm = functional.layer_norm(z, (32,))
        # a norm of one's own: its statistic is a small factor
        scaled = z * torch.rsqrt(z.square().mean(-1, keepdim=True) + 1e-5)
    forms = compression.report().forms
    assert forms["exact: softmax"].original_nbytes == y.nbytes
    assert {"exact: layer_norm", "exact: rsqrt", "exact: square"} >= {
        name
        for name in forms
        if name.startswith("exact") and name not in ("exact: softmax", "exact: small")
    }
    (norm.sum() + scaled.sum()).backward()


def test_a_part_of_a_large_storage_does_not_keep_all_of_it() -> None:
    layer = nn.Linear(64, 64)
    with _lossy():
        hidden = layer(torch.randn(512, 64)).tanh() * 1
        part = hidden[0] * hidden[0]
    alive = StorageWeakRef(hidden.untyped_storage())
    del hidden
    gc.collect()
    assert alive.expired()
    part.sum().backward()


def test_without_memory_to_encode_tensors_are_kept_and_one_line_says_so(
    monkeypatch, caplog
) -> None:
    def lacking(*_: object, **__: object) -> None:
        raise MemoryError("no memory left")

    codec = create("group4")
    monkeypatch.setattr(type(codec), "pack", lacking)
    monkeypatch.setattr(window_module, "_warned", set())
    model, x = _mlp(), torch.randn(64, 64)
    exact = gradients(model, model, x)
    compression = activations.compressed("group4")
    with caplog.at_level(logging.WARNING, "tersor"):
        assert all_equal(exact, gradients(model, model, x, compression))
        gradients(model, model, x, compression)
    assert len([line for line in caplog.messages if "not enough memory" in line]) == 1
    assert "exact: no memory to encode" in compression.report().forms


def test_another_error_of_a_codec_is_raised(monkeypatch) -> None:
    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(type(create("group4")), "pack", failing)
    with pytest.raises(RuntimeError, match="a fault"), activations.compressed("group4"):
        _mlp()(torch.randn(64, 64))
    # the context is closed all the same
    y = torch.relu(nn.Linear(64, 64)(torch.randn(64, 64)))
    y.sum().backward()


def test_a_pass_without_gradients_is_left_alone() -> None:
    compression = _lossy()
    with torch.no_grad(), compression:
        _mlp()(torch.randn(64, 64))
    assert compression.report().num_steps == 0


def test_threads_compress_apart() -> None:
    model, x = _mlp(), torch.randn(64, 64)
    compression = activations.compressed("raw")
    exact = [p.clone() for p in torch.autograd.grad(model(x).sum(), list(model.parameters()))]
    found: list[bool] = []

    def work() -> None:
        with compression:
            out = model(x)
        got = torch.autograd.grad(out.sum(), list(model.parameters()))
        found.append(all_equal(exact, list(got)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4


def test_an_error_in_the_forward_pass_closes_the_context() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), _lossy():
        _mlp()(torch.randn(64, 63))
    assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
    assert torch.overrides._len_torch_function_stack() == 0
