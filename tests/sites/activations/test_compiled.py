"""Compiled code encodes and decodes inside its own graphs."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch.nn import functional

from tersor import Bound, SpecError, create
from tersor.policy import gradient_similarity
from tersor.sites import activations
from tersor.sites.activations import compiled_graphs, compiled_order, watching
from tersor.sites.activations.watching import untraced
from tests.sites.activations.models import (
    MultiHead,
    Transformer,
    all_equal,
    cnn,
    gradients,
    images,
    tokens,
)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _graphs(
    encoded: list[tuple[int, ...]] | None = None,
) -> tuple[object, list[list[str]]]:
    """Return a compiler that only notes the operators of both graphs, and the shapes that are encoded."""
    seen: list[list[str]] = []

    def note(graph, _):
        seen.append([str(node.target) for node in graph.graph.nodes])
        for node in graph.graph.nodes:
            if encoded is not None and "tersor.encode" in str(node.target):
                encoded.append(tuple(node.args[0].meta["val"].shape))
        return lambda args: graph.forward(*args)

    def boxed(graph, inputs):
        function = note(graph, inputs)
        function._boxed_call = True
        return function

    return aot_autograd(fw_compiler=boxed, bw_compiler=boxed), seen


def _count(graph: list[str], name: str) -> int:
    return sum(name in target for target in graph)


@pytest.mark.parametrize("name", ["cnn", "transformer", "multi-head"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_are_equal_bit_for_bit_in_one_graph(name, dynamic) -> None:
    model, x = {
        "cnn": lambda: (cnn(), images()),
        "transformer": lambda: (Transformer(), tokens()),
        "multi-head": lambda: (MultiHead(), torch.randn(8, 32, 32)),
    }[name]()
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    exact = gradients(
        torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic), model, x
    )
    torch._dynamo.reset()
    compiler, graphs = _graphs()
    compiled = torch.compile(model, fullgraph=True, backend=compiler, dynamic=dynamic)
    assert all_equal(exact, gradients(compiled, model, x, activations.compiled("raw")))
    forward, backward = graphs
    assert _count(forward, "tersor.encode") == _count(backward, "tersor.decode") > 2
    assert _count(forward, "tersor.decode") == _count(backward, "tersor.encode") == 0
    if name != "cnn":
        assert _count(backward, "tersor.attention_backward") > 0
        assert _count(backward, "scaled_dot_product") == 0


def _through_views(node, step):
    """Return nodes reached from ``node`` by ``step`` (its inputs or its users), passing through views."""
    found = []
    for one in step(node):
        found += _through_views(one, step) if compiled_order._is_view(one) else [one]
    return found


def _most_coded_at_once(graph: torch.fx.Graph) -> tuple[int, int]:
    """Return how many tensors that are encoded or decoded exist at most at once in a graph, and in all."""
    place = {node: k for k, node in enumerate(graph.nodes)}
    lives = []
    for node in graph.nodes:
        if "tersor.encode" in str(node.target):
            (first,) = _through_views(node, lambda one: one.all_input_nodes)
        elif "tersor.decode" in str(node.target):
            first = node
        else:
            continue
        readers = [
            one for one in _through_views(first, lambda one: one.users) if one.op != "output"
        ]
        lives.append((place[first], max(map(place.get, readers))))
    alive = [sum(first <= k <= last for first, last in lives) for k in range(len(place))]
    return max(alive), len(lives)


@pytest.mark.parametrize("dynamic", [False, True])
def test_tensors_are_encoded_early_and_decoded_late(monkeypatch, dynamic) -> None:
    layers = [part for _ in range(8) for part in (nn.Linear(64, 64), nn.Tanh(), nn.LayerNorm(64))]
    model, x = nn.Sequential(*layers), torch.randn(128, 64, requires_grad=True)
    found = {}
    for name in ("placed", "left"):
        torch._dynamo.reset()
        graphs: list[torch.fx.Graph] = []

        def compiler(graph, _, graphs=graphs):
            graphs.append(graph.graph)
            return make_boxed_func(graph.forward)

        backend = aot_autograd(fw_compiler=compiler, bw_compiler=compiler)
        compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=dynamic)
        gradients(compiled, model, x, activations.compiled("group8"))
        found[name] = [_most_coded_at_once(graph) for graph in graphs]
        monkeypatch.setattr(compiled_graphs, "place_coding", lambda *_: None)
    for most, total in found["placed"]:
        assert most < total / 3
    # a planted fault: the order that torch gives them
    for most, total in found["left"]:
        assert most > 0.9 * total


@pytest.mark.parametrize("name", ["group4", "group8", "fp8"])
def test_codecs_of_fixed_size_train(name) -> None:
    model, x = Transformer(), tokens()
    exact = gradients(model, model, x)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    lossy = gradients(compiled, model, x, activations.compiled(name))
    assert not all_equal(exact, lossy)
    assert gradient_similarity(exact, lossy).score > 0.95


def test_another_batch_size_needs_no_new_graph() -> None:
    model = Transformer()
    compiler, graphs = _graphs()
    compiled = torch.compile(model, fullgraph=True, backend=compiler, dynamic=True)
    compression = activations.compiled("group8")
    for batch in (8, 12, 5):
        x = torch.randint(0, 64, (batch, 32))
        exact = gradients(model, model, x)
        lossy = gradients(compiled, model, x, compression)
        assert gradient_similarity(exact, lossy).score > 0.99
    assert len(graphs) == 2


@pytest.mark.parametrize("codec", ["ans", "flat"])
def test_codecs_whose_size_varies_are_refused_with_the_way_out(codec) -> None:
    with pytest.raises(SpecError, match=r"vary in size.*group4"):
        activations.compiled(codec, bound=Bound.relative(0.01))
    with pytest.raises(SpecError, match="vary in size"):
        activations.compiled("rms")
    with pytest.raises(SpecError, match="own options"):
        activations.compiled(create("group4"), group=64)


def test_softmax_and_statistics_stay_exact_in_a_graph() -> None:
    def attend(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        q, k = q * 1, k * 1
        scores = torch.softmax(q @ k.transpose(1, 2), -1)
        return functional.layer_norm(scores @ k, (32,))

    encoded: list[tuple[int, ...]] = []
    compiler, graphs = _graphs(encoded)
    compiled = torch.compile(attend, fullgraph=True, backend=compiler)
    q, k = (torch.randn(8, 64, 32, requires_grad=True) for _ in range(2))
    with activations.compiled("group4"):
        out = compiled(q, k)
    out.sum().backward()
    forward, _ = graphs
    assert _count(forward, "aten._softmax") == 1
    # q, k, and the input of the norm; not the probabilities, nor mean and deviation
    assert set(encoded) == {(8, 64, 32)}


def test_what_is_not_compiled_stays_exact() -> None:
    model, x = Transformer(), tokens()
    exact = gradients(model, model, x)
    assert all_equal(exact, gradients(model, model, x, activations.compiled("group4")))


def _lines(caplog, monkeypatch, forward, *, grad: bool = True) -> list[str]:
    """Return what is logged when a forward pass runs three times in the context of compiled code."""
    monkeypatch.setattr(compiled_graphs, "_warned", set())
    compression = activations.compiled("group8")
    with caplog.at_level(logging.WARNING, "tersor"), torch.set_grad_enabled(grad):
        for _ in range(3):
            with compression:
                out = forward(torch.randn(256, 64))
            if grad:
                out.sum().backward()
    return [one.message for one in caplog.records if one.name == "tersor"]


def test_code_that_is_not_compiled_is_reported_once(caplog, monkeypatch) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10))
    (line,) = _lines(caplog, monkeypatch, model)
    assert "not compiled" in line
    assert "activations.compressed" in line


@pytest.mark.parametrize("mode", ["compiled", "glue", "no gradients", "nothing large"])
def test_nothing_is_said_where_code_is_compiled_or_saves_nothing(caplog, monkeypatch, mode) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10))
    compiled = torch.compile(model, backend="aot_eager")
    forward = {
        "compiled": compiled,
        "glue": lambda x: compiled(x).exp(),
        "no gradients": model,
        "nothing large": lambda x: model(x[:2]),
    }[mode]
    assert not _lines(caplog, monkeypatch, forward, grad=mode != "no gradients")


def test_a_compiled_function_in_the_other_context_stays_exact() -> None:
    # what it saves comes at its end, for no function that could be informed
    model, x = Transformer(), tokens()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    exact = gradients(compiled, model, x)
    torch._dynamo.reset()
    compression = activations.compressed("group4")
    assert all_equal(exact, gradients(compiled, model, x, compression))
    assert "group4" not in compression.report().forms


def _wrapped_and_compiled(model: nn.Module, compression: activations.Compression) -> object:
    activations.wrap(model, compression=compression)
    return torch.compile(model, backend="aot_eager")


def _compiled_and_wrapped(model: nn.Module, compression: activations.Compression) -> object:
    model.compile(backend="aot_eager")
    activations.wrap(model, compression=compression)
    return model


def _entered_inside(model: nn.Module, compression: activations.Compression) -> object:
    @torch.compile(backend="aot_eager")
    def forward(x: torch.Tensor) -> torch.Tensor:
        with compression:
            return model(x)

    return forward


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("make", [_wrapped_and_compiled, _compiled_and_wrapped, _entered_inside])
def test_the_context_of_eager_mode_is_not_traced(make) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 8))
    inputs = [torch.randn(size, 64) for size in (64, 48, 32)]
    expected = [gradients(model, model, x) for x in inputs]
    compression = activations.compressed(step=0.5)
    forward = make(model, compression)
    for x, exact in zip(inputs, expected, strict=True):
        found = gradients(forward, model, x)
        assert all(
            torch.allclose(g, h, rtol=1e-5, atol=1e-6) for g, h in zip(found, exact, strict=True)
        )
    # compiled code keeps its tensors exactly in this context
    assert "rms" not in compression.report().forms


def test_hooks_are_excluded_only_where_dynamo_watches(monkeypatch) -> None:
    seen = []

    @untraced
    def hook(x: torch.Tensor) -> torch.Tensor:
        seen.append((get_eval_frame_callback(), torch.compiler.is_compiling()))
        return x

    with monkeypatch.context() as patch:
        # would take time at every saved tensor
        patch.setattr(torch.compiler, "disable", None)
        hook(torch.ones(1))
    torch.compile(lambda x: hook(x * 2) + 1, backend="aot_eager")(torch.ones(1))
    assert seen == [(None, False)] * 2


def test_without_torchs_private_question_hooks_are_excluded_once_dynamo_is_loaded(
    monkeypatch,
) -> None:
    monkeypatch.setattr(watching, "_frame_callback", None)
    excluded = []
    monkeypatch.setattr(torch.compiler, "disable", lambda f: excluded.append(f) or f)

    @untraced
    def hook(x: torch.Tensor) -> torch.Tensor:
        return x

    hook(torch.ones(1))
    assert len(excluded) == 1


def test_nothing_is_steered_in_compiled_graphs() -> None:
    with pytest.raises(SpecError, match="leave step out, or take activations"):
        activations.compiled(step=0.5)


def test_a_report_is_of_the_context_entered_last_which_may_have_none() -> None:
    model, x = cnn(), images()
    gradients(model, model, x, activations.compressed("group4"))
    assert activations.report().codec == "group4"
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    gradients(compiled, model, x, activations.compiled("group4"))
    with pytest.raises(AttributeError, match="the context around compiled code has no 'report'"):
        activations.report()


def test_a_context_that_sees_no_function_of_compiled_code_says_so_once(caplog) -> None:
    model, x = cnn(), images()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    compression = activations.compressed("group4")
    with caplog.at_level(logging.WARNING, logger="tersor"):
        for _ in range(2):
            gradients(compiled, model, x, compression)
    assert sum("compiled code takes activations.compiled" in one for one in caplog.messages) == 1
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="tersor"):
        gradients(model, model, x, activations.compressed("group4"))
    assert not caplog.messages


def test_what_the_context_of_compiled_code_lacks_is_said() -> None:
    with pytest.raises(AttributeError, match="no 'report': nobody sees there"):
        activations.compiled("group4").report()


def test_each_of_two_threads_leaves_what_it_has_entered() -> None:
    compression = activations.compiled()

    def enter_without_gradients() -> None:
        with torch.no_grad():
            compression.__enter__()

    with ThreadPoolExecutor(1) as other:
        compression.__enter__()
        other.submit(enter_without_gradients).result()
        compression.__exit__(None, None, None)
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        other.submit(compression.__exit__, None, None, None).result()
