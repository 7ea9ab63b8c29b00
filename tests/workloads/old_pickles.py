"""Arrays, CSR matrices and dictionaries as Python 2 pickled them, protocol 2: what Planetoid's files are."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

_STOP = b"."


def _number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def _text(value: bytes) -> bytes:
    return b"T" + struct.pack("<i", len(value)) + value


def _array(values: np.ndarray) -> bytes:
    kind = values.dtype.str
    made = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\n" + _text(kind[1:].encode()) + b"K\x00K\x01\x87R(K\x03"
    dtype += _text(kind[:1].encode()) + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = b"(" + b"".join(_number(size) for size in values.shape) + b"t"
    return made + b"(K\x01" + shape + dtype + b"\x89" + _text(values.tobytes()) + b"tb"


def pickled_array(values: np.ndarray) -> bytes:
    return b"\x80\x02" + _array(values) + _STOP


def pickled_csr(dense: np.ndarray) -> bytes:
    rows, columns = np.nonzero(dense)
    indptr = np.searchsorted(rows, np.arange(len(dense) + 1)).astype(np.int32)
    parts: dict[bytes, bytes] = {
        b"_shape": _number(dense.shape[0]) + _number(dense.shape[1]) + b"\x86",
        b"indptr": _array(indptr),
        b"indices": _array(columns.astype(np.int32)),
        b"data": _array(dense[rows, columns].astype(np.float32)),
    }
    items = b"".join(_text(name) + value for name, value in parts.items())
    return b"\x80\x02cscipy.sparse.csr\ncsr_matrix\n)\x81}(" + items + b"ub" + _STOP


def pickled_lists(lists: Mapping[int, list[int]]) -> bytes:
    items = b""
    for key, values in lists.items():
        items += _number(key) + b"](" + b"".join(map(_number, values)) + b"e"
    return b"\x80\x02ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R(" + items + b"u" + _STOP


def write_planetoid(folder: Path, name: str = "tiny") -> dict[str, Any]:
    """Write a graph of seven nodes, of which the fourth to judge by has no file; return what it is."""
    rng = np.random.default_rng(0)
    features = (rng.random((6, 5)) < 0.6).astype(np.float32)
    classes = np.eye(3, dtype=np.int32)
    known, judged = np.array([0, 1, 2, 0]), np.array([1, 2])
    lists = {0: [1, 2, 1], 1: [0], 2: [0, 2], 3: [4], 4: [3, 6], 5: [], 6: [4]}
    parts = {
        "x": pickled_csr(features[:2]), "y": pickled_array(classes[known[:2]]),
        "allx": pickled_csr(features[:4]), "ally": pickled_array(classes[known]),
        "tx": pickled_csr(features[4:]), "ty": pickled_array(classes[judged]),
        "graph": pickled_lists(lists), "test.index": b"6\n4\n",
    }  # fmt: skip
    for part, data in parts.items():
        (folder / f"ind.{name}.{part}").write_bytes(data)
    return {"features": features, "classes": (known, judged)}
