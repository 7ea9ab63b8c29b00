"""Opens graphs from any supported source."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import Any, Final

import numpy as np

from tersor.errors import CorruptDataError, SpecError
from tersor.workloads.data.graphs import Graph, as_features
from tersor.workloads.data.planetoid import read_planetoid
from tersor.workloads.data.synthetic_graph import SyntheticGraph

SYNTHETIC: Final = "synthetic"
_UNREADABLE: Final = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError)
_WHOLE: Final = ("indptr", "indices", "labels", "train", "test")


def open_graph(
    source: str | os.PathLike[str], *, seed: int = 0, num_nodes: int | None = None
) -> Graph:
    """Open a graph.

    Args:
        source: ``"synthetic"``; a file ``ind.NAME.graph`` or ``ind.NAME`` of Planetoid, with its other
            files in the same folder; an ``.npz`` file; or the name of one in the folder ``graphs`` of
            the folder in the environment variable ``TERSOR_DATA``.
        seed: of the synthetic graph.
        num_nodes: of the synthetic graph; 2,000 by default.

    Raises:
        CorruptDataError: the data is damaged.
        SpecError: there is no such graph, or the file does not hold the expected arrays.

    Example:
        >>> graph = open_graph("synthetic", num_nodes=500)
        >>> graph.num_nodes, graph.num_classes, graph.features.shape
        (500, 8, (500, 512))
    """
    if source == SYNTHETIC:
        options: dict[str, Any] = {} if num_nodes is None else {"num_nodes": num_nodes}
        return SyntheticGraph(seed=seed, **options).graph()
    if num_nodes is not None:
        raise SpecError("only the synthetic graph has a number of nodes to choose")
    path = Path(source)
    if path.name.startswith("ind."):
        return read_planetoid(path.parent, path.name.split(".")[1])
    data = os.environ.get("TERSOR_DATA")
    if data and not path.is_file():
        path = Path(data) / "graphs" / f"{source}.npz"
    if not path.is_file():
        raise SpecError(
            f"there is no {path}; name an .npz file, a file ind.NAME.graph of Planetoid, or 'synthetic'"
        )
    return _read_npz(path)


def _read_npz(path: Path) -> Graph:
    """Read ``indptr`` and ``indices``, and ``features``, ``labels``, ``train`` and ``test`` if present."""
    try:
        # given a path, numpy would leave a damaged file open
        with path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {name: file[name] for name in (*_WHOLE, "features") if name in file}
    except OSError as error:
        raise SpecError(f"{path} cannot be read: {error.strerror or error}") from error
    except _UNREADABLE as error:
        raise CorruptDataError(f"{path} is damaged, or no .npz file") from error
    if "indptr" not in arrays or "indices" not in arrays:
        raise SpecError(f"{path} needs the arrays indptr and indices")
    count = max(0, len(arrays["indptr"]) - 1)
    if "features" not in arrays:
        arrays["features"] = np.zeros((count, 0), np.float32)
        arrays["labels"] = np.zeros(count, np.int64)
    for name in _WHOLE:
        found = arrays.setdefault(name, np.zeros(0, np.int64))
        if found.ndim != 1 or found.dtype.kind not in "iu":
            raise SpecError(f"{path}: the array {name} must be whole numbers along one axis")
    if arrays["features"].ndim != 2 or arrays["features"].dtype.kind not in "iufb":
        raise SpecError(f"{path}: the array features must be numbers [nodes, features]")
    whole = {name: arrays[name].astype(np.int64) for name in _WHOLE}
    return Graph(path.stem, features=as_features(arrays["features"]), **whole)
