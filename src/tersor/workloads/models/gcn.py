"""Graph networks: GCN and GraphSAGE with mean aggregation, over a graph matrix in any of three forms.

Shapes: N input nodes of a layer; M output nodes, which are the first M inputs; D features.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Literal

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tersor.errors import SpecError
from tersor.workloads.data.graphs import Graph, Indices

Form = Literal["csr", "matmul", "linear"]
FORMS: Final = ("csr", "matmul", "linear")
KINDS: Final = ("gcn", "sage")


class Propagation(nn.Module):
    """Multiplies features by a sparse matrix: each row of the result is a weighted sum of neighbours.

    Args:
        indptr: int64 [M + 1], start of the entries of each row.
        columns: int64 [entries].
        weights: float32 [entries].
        num_columns: N.
        form: ``"csr"`` is a sparse matrix; ``"matmul"`` a dense one, which is an input like the features;
            ``"linear"`` a dense one as a fixed weight, for hardware that streams weights. Dense forms
            take 4 * M * N bytes.
    """

    matrix: torch.Tensor

    def __init__(
        self, indptr: Indices, columns: Indices, weights: np.ndarray, num_columns: int, form: Form
    ) -> None:
        super().__init__()
        if form not in FORMS:
            raise SpecError(f"form must be one of {', '.join(FORMS)}, not {form!r}")
        self.form, shape = form, (len(indptr) - 1, num_columns)
        self.num_rows = shape[0]
        arrays = (indptr.astype(np.int32), columns.astype(np.int32), weights.astype(np.float32))
        begins, places, values = map(torch.from_numpy, arrays)
        with warnings.catch_warnings():
            # torch warns once per process that sparse matrices are in beta
            warnings.simplefilter("ignore", UserWarning)
            found = torch.sparse_csr_tensor(begins, places, values, size=shape)
        if form != "csr":
            found = found.to_dense()
        if form == "linear":
            self.register_buffer("matrix", found, persistent=False)
        else:
            self.matrix = found

    def on(self, device: torch.device) -> Propagation:
        """Move the matrix to a device, in place."""
        self.matrix = self.matrix.to(device)
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sums, [M, D]."""
        if self.form == "linear":
            # dropout draws in memory order, which must match that of the other forms
            return functional.linear(x.T, self.matrix).T.contiguous()
        return self.matrix @ x


def matrix_nbytes(form: Form, num_rows: int, num_columns: int, num_entries: int) -> int:
    """Return the bytes of a matrix in a form.

    Example:
        >>> matrix_nbytes("csr", 2708, 2708, 13264), matrix_nbytes("matmul", 2708, 2708, 13264)
        (116948, 29333056)
    """
    if form == "csr":
        return 4 * (num_rows + 1 + num_entries) + 4 * num_entries
    return 4 * num_rows * num_columns


def whole_propagation(graph: Graph, kind: Literal["gcn", "sage"], form: Form) -> Propagation:
    """Return the matrix of a whole graph.

    That of GCN is D^-1/2 (A + I) D^-1/2 with the degrees D of A + I. That of GraphSAGE is the mean over
    neighbours, with an empty row for an isolated node.
    """
    nodes = np.arange(graph.num_nodes)
    rows = np.repeat(nodes, graph.degrees)
    if kind == "sage":
        weights = 1.0 / graph.degrees[rows]
        return Propagation(graph.indptr, graph.indices, weights, graph.num_nodes, form)
    # sort columns within rows, which puts loops in their place
    rows, columns = np.concatenate([rows, nodes]), np.concatenate([graph.indices, nodes])
    order = np.lexsort((columns, rows))
    scale = (graph.degrees + 1.0) ** -0.5
    indptr = graph.indptr + np.arange(graph.num_nodes + 1)
    rows, columns = rows[order], columns[order]
    return Propagation(indptr, columns, scale[rows] * scale[columns], graph.num_nodes, form)


class GraphNet(nn.Module):
    """Predicts the class of nodes from their own features and those of their neighbourhood.

    Args:
        kind: ``"gcn"`` or ``"sage"``.
        widths: number of features, widths of hidden layers, number of classes.
        dropout: share of a layer's inputs that are dropped in training.
    """

    def __init__(
        self, kind: Literal["gcn", "sage"], widths: Sequence[int], dropout: float = 0.5
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise SpecError(f"model must be one of {', '.join(KINDS)}, not {kind!r}")
        if len(widths) < 2 or min(widths) < 1 or not 0 <= dropout < 1:
            raise SpecError(
                f"a graph network needs layers of at least one value and a dropout from 0 to below 1, not "
                f"{tuple(widths)} and {dropout}"
            )
        self.dropout = dropout
        pairs = list(pairwise(widths))
        self.neighbours = nn.ModuleList(nn.Linear(*pair, bias=kind == "gcn") for pair in pairs)
        # GraphSAGE has separate weights for a node and its neighbours
        self.own = nn.ModuleList(nn.Linear(*pair) for pair in pairs if kind == "sage")
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: torch.Tensor, hops: Sequence[Propagation]) -> torch.Tensor:
        """Return the logits of the output nodes of the last hop; there is one hop per layer."""
        for number, (layer, hop) in enumerate(zip(self.neighbours, hops, strict=True)):
            if number:
                x = functional.relu(x)
            x = functional.dropout(x, self.dropout, self.training)
            # apply the weights first, because the product with the matrix is cheaper with fewer columns
            sums = hop(layer(x))
            if self.own:
                sums = sums + self.own[number](x[: hop.num_rows])
            x = sums
        return x
