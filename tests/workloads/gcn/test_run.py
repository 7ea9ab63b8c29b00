"""Graph networks resume exactly and learn, and the three forms of their matrix agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tersor.errors import SpecError
from tersor.workloads.data.synthetic_graph import SyntheticGraph
from tersor.workloads.gcn import GcnConfig, GcnRun
from tersor.workloads.gcn.study import form_costs
from tersor.workloads.models.gcn import FORMS, KINDS, GraphNet, matrix_nbytes, whole_propagation
from tersor.workloads.training.checkpoint import resume, save_checkpoint
from tests.checks import assert_bits_equal
from tests.sites.ranks import run_ranks

GRAPH = SyntheticGraph(num_nodes=400, num_features=64, num_classes=4).graph()
SAGE = {"model": "sage", "fanouts": (4, 3), "batch": 16}


def config(**options: Any) -> GcnConfig:
    return GcnConfig(**{"batch": len(GRAPH.train), "steps": 8, **options})


def taken(run: GcnRun, num_steps: int) -> GcnRun:
    for _ in range(num_steps):
        run.step()
    return run


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("options", [{}, {"model": "sage"}, SAGE], ids=["gcn", "sage", "drawn"])
def test_a_resumed_run_takes_the_same_steps(tmp_path, form, options) -> None:
    whole = taken(GcnRun(config(form=form, **options), GRAPH), 6)
    save_checkpoint(taken(GcnRun(config(form=form, **options), GRAPH), 3), tmp_path)
    second = GcnRun(config(form=form, **options), GRAPH)
    assert resume(second, tmp_path) == 3
    taken(second, 3)
    assert second.state().keys() == whole.state().keys()
    for name, value in whole.state().items():
        assert_bits_equal(second.state()[name], value)


@pytest.mark.parametrize("options", [{}, {"model": "sage"}, SAGE], ids=["gcn", "sage", "drawn"])
def test_the_three_forms_take_the_same_steps(options) -> None:
    losses = []
    for form in FORMS:
        run = GcnRun(config(form=form, **options), GRAPH)
        losses.append([run.step() for _ in range(6)] + [run.evaluate().loss])
    # float32 sums in another order, over six steps
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    np.testing.assert_allclose(losses[2], losses[0], rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_matrix_is_the_published_one(kind) -> None:
    count = GRAPH.num_nodes
    edges = np.zeros((count, count))
    edges[np.repeat(np.arange(count), GRAPH.degrees), GRAPH.indices] = 1.0
    if kind == "gcn":
        edges += np.eye(count)
        scale = np.diag(edges.sum(1) ** -0.5)
        wanted = scale @ edges @ scale
    else:
        wanted = edges / np.maximum(edges.sum(1, keepdims=True), 1)
    for form in FORMS:
        propagation = whole_propagation(GRAPH, kind, form)
        found = propagation(torch.eye(count))
        np.testing.assert_allclose(found.numpy(), wanted, atol=1e-6)
        assert propagation.state_dict() == {}
        assert len(list(propagation.buffers())) == (form == "linear")


def test_predicted_bytes_are_those_of_the_matrix() -> None:
    for form in FORMS:
        matrix = whole_propagation(GRAPH, "gcn", form).matrix
        parts = [matrix]
        if form == "csr":
            parts = [matrix.crow_indices(), matrix.col_indices(), matrix.values()]
        entries = len(GRAPH.indices) + GRAPH.num_nodes
        nbytes = sum(part.numel() * part.element_size() for part in parts)
        assert nbytes == matrix_nbytes(form, GRAPH.num_nodes, GRAPH.num_nodes, entries)


def test_a_study_times_what_fits_and_nothing_else() -> None:
    for cost in form_costs(GRAPH, limit_nbytes=100_000):
        assert (cost.product_ms is not None) == (cost.form == "csr")
    for cost in form_costs(GRAPH, limit_nbytes=640_000):
        assert cost.product_ms is not None
        assert cost.product_ms > 0


@pytest.mark.parametrize("options", [{}, SAGE], ids=["gcn", "drawn"])
def test_a_graph_network_learns(options) -> None:
    run = GcnRun(config(steps=60, learning_rate=0.02, **options), GRAPH)
    before = run.evaluate()
    after = taken(run, 60).evaluate()
    assert before.accuracy < 0.5
    assert after.accuracy > 0.65
    assert after.loss < before.loss
    assert after.num_samples == 200
    assert run.evaluate(10).num_samples == 10


def test_only_the_first_layer_decays() -> None:
    for options in ({}, {"model": "sage"}):
        run = GcnRun(config(**options), GRAPH)
        decayed, others = run.optimizer.param_groups
        assert (decayed["weight_decay"], others["weight_decay"]) == (5e-4, 0.0)
        assert all(64 in p.shape or p.shape == (16,) for p in decayed["params"])
        assert len(decayed["params"]) + len(others["params"]) == len(run.trained())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "gat"}, "model must be one of gcn, sage, not 'gat'"),
        ({"form": "coo"}, "form must be one of csr, matmul, linear, not 'coo'"),
        ({"fanouts": (3, 3)}, "drawn neighbours are GraphSAGE's"),
        ({**SAGE, "fanouts": (3,)}, "a number above 0 for each of 2 layers"),
        ({**SAGE, "fanouts": (3, 0)}, "a number above 0 for each of 2 layers"),
        ({"weight_decay": -1.0}, "must not be below 0"),
        ({"batch": 16}, "40 nodes to train on, which is the batch of a whole graph"),
        ({**SAGE, "batch": 41}, "40 nodes to train on"),
        ({"hidden": (0,)}, "layers of at least one value"),
        ({"dropout": 1.0}, "a dropout from 0 to below 1"),
    ],
)
def test_what_cannot_be_trained_is_refused(options, words) -> None:
    with pytest.raises(SpecError, match=words):
        GcnRun(config(**options), GRAPH)


def test_an_impossible_network_is_refused() -> None:
    with pytest.raises(SpecError, match="model must be one of gcn, sage"):
        GraphNet("gat", (4, 2))  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="at least one node, not 0"):
        GcnRun(config(), GRAPH).evaluate(0)


def run_on_ranks(rank: int) -> None:
    GcnRun(config(), GRAPH)


def test_several_ranks_are_refused() -> None:
    for failure in run_ranks(run_on_ranks, 2):
        assert failure.name == "SpecError"
        assert failure.message.startswith("a graph network trains on one rank")
