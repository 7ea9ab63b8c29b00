"""Neighbour sampling in a graph, layer by layer, as in GraphSAGE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tersor.workloads.data.graphs import Graph, Indices
from tersor.workloads.data.hashes import GOLDEN, hashes, scrambled

_ORDER, _DRAWS = 4, 5


@dataclass(frozen=True, slots=True)
class Hop:
    """The sampled bipartite graph of one layer.

    Attributes:
        nodes: int64 [N], the input nodes; the first M of them are the output nodes.
        indptr: int64 [M + 1], start of the drawn neighbours of each output node.
        columns: int64 [draws], positions of the drawn neighbours in ``nodes``.
        weights: float32 [draws], one over the number of draws of the output node.
    """

    nodes: Indices
    indptr: Indices
    columns: Indices
    weights: np.ndarray


def drawn_hops(
    graph: Graph, nodes: Indices, fanouts: Sequence[int], seed: int, step: int
) -> list[Hop]:
    """Return the hops whose final outputs are ``nodes``, the outermost first.

    A node with neighbours draws ``fanouts[layer]`` of them with replacement; an isolated node draws none.
    Draws depend only on seed, step, layer and position.
    """
    hops: list[Hop] = []
    for layer in reversed(range(len(fanouts))):
        count = fanouts[layer]
        has_any = graph.degrees[nodes] > 0
        indptr = np.concatenate([[0], np.cumsum(has_any * count)]).astype(np.int64)
        rows = np.repeat(nodes[has_any], count)
        first = hashes(seed, _DRAWS, step * len(fanouts) + layer, 1)
        bits = scrambled(first + np.arange(len(rows), dtype=np.uint64) * GOLDEN)
        chosen = (bits >> np.uint64(16)).astype(np.int64) % graph.degrees[rows]
        targets = graph.indices[graph.indptr[rows] + chosen]
        outer, columns = _joined(nodes, targets)
        weights = np.full(len(rows), 1.0 / count, np.float32)
        hops.insert(0, Hop(outer, indptr, columns, weights))
        nodes = outer
    return hops


def _joined(nodes: Indices, more: Indices) -> tuple[Indices, Indices]:
    """Return ``nodes`` followed by the new nodes of ``more``, and the positions of ``more`` in the result."""
    new = np.setdiff1d(more, nodes)
    outer = np.concatenate([nodes, new])
    order = np.argsort(outer, kind="stable")
    return outer, order[np.searchsorted(outer[order], more)]


def step_nodes(train: Indices, seed: int, step: int, batch: int) -> Indices:
    """Return the nodes of a step; an epoch contains every node at most once, in its own order."""
    epoch, place = divmod(step, len(train) // batch)
    order = np.argsort(hashes(seed, _ORDER, epoch * len(train), len(train)), kind="stable")
    return train[order[place * batch : (place + 1) * batch]]
