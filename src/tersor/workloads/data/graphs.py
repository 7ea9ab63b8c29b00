"""In-memory graphs whose nodes have features and classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tersor.errors import SpecError

Indices: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Graph:
    """An undirected graph in CSR form. It stores each edge in both directions, without duplicates or loops.

    Attributes:
        name: for logs and reports; unique to the graph.
        indptr: int64 [nodes + 1]; the neighbours of node n are ``indices[indptr[n] : indptr[n + 1]]``.
        indices: int64 [2 * edges].
        features: float32 [nodes, features]; without columns if there are no features.
        labels: int64 [nodes], the class of each node, counted from 0.
        train: int64, nodes of the training split.
        test: int64, nodes of the test split.
    """

    name: str
    indptr: Indices
    indices: Indices
    features: npt.NDArray[np.float32]
    labels: Indices
    train: Indices
    test: Indices

    def __post_init__(self) -> None:
        """Check that the arrays are consistent."""
        count = self.num_nodes
        if count < 1 or self.indptr[0] != 0 or self.indptr[-1] != len(self.indices):
            raise SpecError(f"{self.name}: indptr must go from 0 to the number of indices")
        if (np.diff(self.indptr) < 0).any():
            raise SpecError(f"{self.name}: indptr must not fall")
        if len(self.features) != count or len(self.labels) != count:
            raise SpecError(
                f"{self.name} has {count} nodes, features of {len(self.features)} and classes of "
                f"{len(self.labels)}"
            )
        for what in (self.indices, self.train, self.test):
            if len(what) and not 0 <= what.min() <= what.max() < count:
                raise SpecError(f"{self.name} names a node that is none of its {count}")
        if self.labels.min() < 0:
            raise SpecError(f"{self.name} has a class below 0")

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.indptr) - 1

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return int(self.labels.max()) + 1

    @property
    def degrees(self) -> Indices:
        """Number of neighbours of each node, int64 [nodes]."""
        return np.diff(self.indptr)

    def check_trainable(self) -> None:
        """Raise ``SpecError`` unless nodes have features and neither split is empty."""
        if not self.features.shape[1] or not len(self.train) or not len(self.test):
            raise SpecError(
                f"{self.name} has no features and classes to train on, only edges; choose another "
                "graph, or measure it with --study"
            )


def csr_of_edges(num_nodes: int, first: Indices, second: Indices) -> tuple[Indices, Indices]:
    """Return indptr and indices of the undirected graph of some edges, without duplicates and loops.

    Example:
        >>> csr_of_edges(3, np.array([0, 1, 2]), np.array([1, 0, 2]))
        (array([0, 1, 2, 2]), array([1, 0]))
    """
    sources, targets = np.concatenate([first, second]), np.concatenate([second, first])
    both = np.unique((sources * num_nodes + targets)[sources != targets])
    counts = np.bincount(both // num_nodes, minlength=num_nodes)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), both % num_nodes


def as_features(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return features as float32, scaled to an L1 norm of 1 per node; nodes of zeros stay zero."""
    found: npt.NDArray[np.float32] = values.astype(np.float32)
    sums = np.abs(found).sum(1, keepdims=True)
    np.divide(found, sums, out=found, where=sums > 0)
    return found
