"""A synthetic graph that a model can learn: neighbours mostly share a class, and features hint at it.

Every edge and every feature is a hash of (seed, number), so every machine generates the same graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from tersor.errors import SpecError
from tersor.workloads.data.graphs import Graph, Indices, as_features, csr_of_edges
from tersor.workloads.data.hashes import U64, hashes

_LABELS, _SOURCES, _TARGETS, _WORDS = 0, 1, 2, 3
_NUM_WORDS: Final = 16
"""Features drawn for each node."""


@dataclass(frozen=True, slots=True)
class SyntheticGraph:
    """A homophilous graph.

    Attributes:
        num_nodes: number of nodes.
        degree: neighbours drawn per node on average; the actual mean is lower, as duplicates are dropped.
        homophily: share of edges that are drawn within a class.
        num_features: width of the feature vectors, most of whose entries are 0.
        num_classes: number of classes, of about equal size.
        hint: share of a node's features that are drawn from those of its class.
        seed: determines the graph.
    """

    num_nodes: int = 2000
    degree: float = 5.0
    homophily: float = 0.8
    num_features: int = 512
    num_classes: int = 8
    hint: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        """Validate the fields."""
        sizes = (self.num_classes, self.num_nodes // (20 * max(1, self.num_classes)))
        if min(sizes) < 1 or self.num_features < self.num_classes or not self.degree >= 0:
            raise SpecError(
                "a graph needs classes, 20 nodes and a feature for each, and a degree of 0 or more"
            )
        if not 0 <= self.homophily <= 1 or not 0 <= self.hint <= 1:
            raise SpecError("homophily and hint are shares, from 0 to 1")

    def graph(self) -> Graph:
        """Generate the graph; about 10 nodes per class are for training, half of all nodes for testing."""
        labels = _below(hashes(self.seed, _LABELS, 0, self.num_nodes), self.num_classes)
        count = int(self.num_nodes * self.degree / 2)
        first, second = self._edges(labels, count)
        indptr, indices = csr_of_edges(self.num_nodes, first, second)
        name = (
            f"synthetic graph, seed {self.seed}, {self.num_nodes} nodes of degree {self.degree:g}, "
            f"homophily {self.homophily:g}, {self.num_features} features"
        )
        nodes = np.arange(self.num_nodes)
        train, test = nodes[: 10 * self.num_classes], nodes[self.num_nodes // 2 :]
        features = as_features(self._features(labels))
        return Graph(name, indptr, indices, features, labels, train, test)

    def _edges(self, labels: Indices, count: int) -> tuple[Indices, Indices]:
        drawn = hashes(self.seed, _SOURCES, 0, count)
        first = _below(drawn, self.num_nodes)
        other = hashes(self.seed, _TARGETS, 0, count)
        second = _below(other, self.num_nodes)
        by_class = np.argsort(labels, kind="stable")
        sizes = np.bincount(labels, minlength=self.num_classes)
        begins = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        own = labels[first]
        within = by_class[begins[own] + _below(other, 1 << 30) % sizes[own]]
        is_within = (drawn % np.uint64(1 << 20)) < np.uint64(int(self.homophily * (1 << 20)))
        return first, np.where(is_within, within, second)

    def _features(self, labels: Indices) -> npt.NDArray[np.float32]:
        drawn = hashes(self.seed, _WORDS, 0, self.num_nodes * _NUM_WORDS)
        drawn = drawn.reshape(self.num_nodes, _NUM_WORDS)
        per_class = self.num_features // self.num_classes
        hinted = labels[:, None] * per_class + _below(drawn, per_class)
        is_hint = (drawn % np.uint64(1 << 20)) < np.uint64(int(self.hint * (1 << 20)))
        words = np.where(is_hint, hinted, _below(drawn, self.num_features))
        found = np.zeros((self.num_nodes, self.num_features), np.float32)
        found[np.arange(self.num_nodes)[:, None], words] = 1.0
        return found


def _below(bits: U64, count: int) -> Indices:
    """Return numbers below ``count`` from the upper bits; callers use the lower bits for other draws."""
    return ((bits >> np.uint64(24)) % np.uint64(count)).astype(np.int64)
