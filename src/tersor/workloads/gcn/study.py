"""Bytes and times of the three forms of a graph's matrix, and the size up to which dense ones fit."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch

from tersor.memory import free_nbytes
from tersor.workloads.data.graphs import Graph
from tersor.workloads.models.gcn import FORMS, Form, matrix_nbytes, whole_propagation

COLUMNS: Final = 64
"""Number of feature columns that the matrix is multiplied by."""
_REPEATS: Final = 3
_FREE_SHARE: Final = 4
"""A matrix may take a quarter of the free memory, because torch makes temporary copies of it."""


@dataclass(frozen=True, slots=True)
class FormCost:
    """The cost of one form of a graph's matrix.

    Attributes:
        graph: its name.
        num_nodes: of the graph.
        num_entries: of the matrix, loops included.
        form: of the matrix.
        matrix_nbytes: predicted from the sizes.
        product_ms: median of three times of a product with 64 columns and its gradient; None if the
            matrix does not fit.
    """

    graph: str
    num_nodes: int
    num_entries: int
    form: Form
    matrix_nbytes: int
    product_ms: float | None

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)


def form_costs(
    graph: Graph, device: torch.device | str = "cpu", limit_nbytes: int | None = None
) -> list[FormCost]:
    """Predict the bytes of GCN's matrix in every form, and time those that fit.

    Args:
        graph: the graph; its features are not used.
        device: on which the products are computed.
        limit_nbytes: most bytes that a matrix may take; by default a quarter of the free memory.

    Example:
        >>> from tersor.workloads.data.graph_opening import open_graph
        >>> costs = form_costs(open_graph("synthetic", num_nodes=200), limit_nbytes=10_000)
        >>> [(cost.form, cost.product_ms is None) for cost in costs]
        [('csr', False), ('matmul', True), ('linear', True)]
    """
    device = torch.device(device)
    limit = matrix_limit_nbytes(device) if limit_nbytes is None else limit_nbytes
    num_nodes, num_entries = graph.num_nodes, len(graph.indices) + graph.num_nodes
    found = []
    for form in FORMS:
        nbytes = matrix_nbytes(form, num_nodes, num_nodes, num_entries)
        milliseconds = _product_ms(graph, form, device) if nbytes <= limit else None
        found.append(FormCost(graph.name, num_nodes, num_entries, form, nbytes, milliseconds))
    return found


def matrix_limit_nbytes(device: torch.device) -> int:
    """Return the most bytes a matrix may take on a device; practically unlimited if unknown."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_nbytes()
    return (1 << 62) if free is None else free // _FREE_SHARE


def most_dense_nodes(limit_nbytes: int) -> int:
    """Return the largest number of nodes whose dense float32 matrix fits a limit.

    Example:
        >>> most_dense_nodes(40_000_000_000)
        100000
    """
    return math.isqrt(limit_nbytes // 4)


def _product_ms(graph: Graph, form: Form, device: torch.device) -> float:
    propagation = whole_propagation(graph, "gcn", form).on(device)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(graph.num_nodes, COLUMNS, generator=generator).to(device).requires_grad_()
    taken = []
    for _ in range(1 + _REPEATS):
        begin = _now(device)
        propagation(x).sum().backward()
        taken.append(_now(device) - begin)
        x.grad = None
    # the first product includes one-time set-up
    return 1e3 * statistics.median(taken[1:])


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
