"""The count that limits an index is the same for writer and reader, and looks into no string."""

from __future__ import annotations

import io
import json

import pytest
import torch

from tersor.container import Reader, Writer
from tersor.container import index as index_module
from tersor.container.index import num_marks
from tersor.errors import CorruptDataError, SpecError


@pytest.mark.parametrize(
    ("value", "marks"),
    [
        ([], 1),
        ({"a": 1, "b": [2, 3]}, 6),
        ("[,:{", 0),
        ('a quote " and , and \\', 0),
        (['\\"', "\\", ",", '"'], 4),
        ({"\\": {"[": '\\\\"[,'}}, 4),
    ],
    ids=repr,
)
@pytest.mark.parametrize("block_nbytes", [1, 3, 2**20])
def test_what_separates_values_is_counted_outside_of_strings(
    value, marks, block_nbytes, monkeypatch
):
    monkeypatch.setattr(index_module, "_BLOCK_NBYTES", block_nbytes)
    assert num_marks(json.dumps(value).encode()) == marks


def test_a_writer_makes_no_index_that_a_reader_refuses(monkeypatch, raw):
    monkeypatch.setattr(index_module, "MAX_INDEX_MARKS", 60)
    stream = io.BytesIO()
    names = ["a", "b"]
    with Writer(stream) as writer:
        for name in names:
            writer.add(name, torch.ones(3), raw)
        for name in ("c", "d"):
            with pytest.raises(SpecError, match="second file"):
                writer.add(name, torch.ones(3), raw)
    with Reader(io.BytesIO(stream.getvalue())) as reader:
        assert reader.names == names
    largest = num_marks(json.dumps({"arrays": []}).encode())
    monkeypatch.setattr(index_module, "MAX_INDEX_MARKS", largest)
    with pytest.raises(CorruptDataError, match="values"):
        Reader(io.BytesIO(stream.getvalue()))
