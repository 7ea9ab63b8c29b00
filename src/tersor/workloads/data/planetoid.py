"""Citation graphs in the files of the Planetoid project: ``ind.cora.x``, ``ind.cora.graph``, ...

``allx`` and ``ally`` are features and classes of all nodes outside of the test split; the first ``len(y)``
of them are the training split. ``tx`` and ``ty`` are those of the test split, in the order of
``test.index``. ``graph`` holds the neighbours of each node.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tersor.errors import CorruptDataError, SpecError
from tersor.workloads.data.graphs import Graph, Indices, as_features, csr_of_edges
from tersor.workloads.data.pickled_arrays import read_pickled

_PARTS: Final = ("y", "tx", "ty", "allx", "ally", "graph")
_MOST_FEATURES: Final = 1 << 17
"""Limit against forged shapes that would exhaust memory; nell, the largest graph, has 61,278."""


def read_planetoid(folder: Path, name: str) -> Graph:
    """Read the files ``ind.NAME.*`` of a folder.

    Raises:
        CorruptDataError: a file is damaged, or inconsistent with the others.
        SpecError: a file is missing, or holds objects other than arrays.
    """
    prefix = folder / f"ind.{name}"
    found = {part: read_pickled(Path(f"{prefix}.{part}")) for part in _PARTS}
    try:
        places = np.array(
            Path(f"{prefix}.test.index").read_text(encoding="ascii").split(), np.int64
        )
    except OSError as error:
        raise SpecError(f"{prefix}.test.index cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise CorruptDataError(f"{prefix}.test.index must have a number per line") from error
    try:
        return _graph(name, found, places)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CorruptDataError(
            f"the files {prefix}.* do not fit each other; fetch them again"
        ) from error


def _graph(name: str, found: dict[str, Any], places: Indices) -> Graph:
    num_nodes = len(found["graph"])
    known, judged = _dense(found["allx"]), _dense(found["tx"])
    # isolated nodes, such as some of citeseer, are in neither file and have no features
    features = np.zeros((num_nodes, known.shape[1]), np.float32)
    labels = np.zeros(num_nodes, np.int64)
    features[: len(known)], features[places] = known, judged
    labels[: len(known)], labels[places] = found["ally"].argmax(1), found["ty"].argmax(1)
    sources = np.repeat(list(found["graph"]), [len(n) for n in found["graph"].values()])
    targets = np.concatenate([np.asarray(n, np.int64) for n in found["graph"].values()])
    if len(targets) and (targets.max() >= num_nodes or sources.max() >= num_nodes):
        raise ValueError("an edge to no node")
    indptr, indices = csr_of_edges(num_nodes, sources, targets)
    train = np.arange(len(found["y"]))
    return Graph(name, indptr, indices, as_features(features), labels, train, places)


def _dense(matrix: dict[str, Any]) -> npt.NDArray[np.float32]:
    """Return a CSR matrix as a dense array; raise ``ValueError`` if it is inconsistent or too wide."""
    rows, columns = matrix["_shape"]
    counts = np.diff(matrix["indptr"])
    if len(counts) != rows or counts.sum() != len(matrix["indices"]):
        raise ValueError("indptr does not fit")
    if columns > _MOST_FEATURES:
        raise ValueError("more features than any such graph has")
    found = np.zeros((rows, columns), np.float32)
    found[np.repeat(np.arange(rows), counts), matrix["indices"]] = matrix["data"]
    return found
