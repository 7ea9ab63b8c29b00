"""What a ``.safetensors`` file says about itself comes back."""

from __future__ import annotations

import io

import pytest
import torch

from tersor import Writer, create
from tersor.cli.arrays.sinks import write_safetensors
from tersor.cli.streams import Output

safetensors = pytest.importorskip("safetensors.torch")
safe_open = pytest.importorskip("safetensors").safe_open

METADATA = {"format": "pt", "note": "café \u2603", "empty": ""}


def metadata_of(path: str) -> dict[str, str] | None:
    with safe_open(path, framework="pt") as file:
        return file.metadata()


@pytest.mark.parametrize("chosen", [(), ("--array", "b")], ids=["all arrays", "one array"])
def test_metadata_comes_back(tersor, chosen) -> None:
    tensors = {"a": torch.arange(4), "b": torch.ones(5), "c": torch.zeros(0)}
    safetensors.save_file(tensors, "s.safetensors", metadata=METADATA)
    tersor.ok("compress", "s.safetensors", "--abs", "0.01")
    tersor.ok("decompress", "s.safetensors.tsr", *chosen, "-o", "t.safetensors")
    assert metadata_of("t.safetensors") == METADATA
    assert "format = pt" in tersor.ok("inspect", "s.safetensors.tsr").out


def test_a_format_without_a_place_for_metadata_is_reported(tersor) -> None:
    safetensors.save_file({"a": torch.ones(4)}, "s.safetensors", metadata=METADATA)
    tersor.ok("compress", "s.safetensors", "--abs", "0.01")
    words = tersor.ok("decompress", "s.safetensors.tsr", "-o", "t.npz").words
    assert "(empty, format, note)" in words
    assert ".safetensors" in words


def test_a_file_without_metadata_comes_back_without(tersor) -> None:
    safetensors.save_file({"a": torch.ones(4)}, "s.safetensors")
    tersor.ok("compress", "s.safetensors", "--abs", "0.01")
    assert "metadata" not in tersor.ok("decompress", "s.safetensors.tsr", "-o", "t.npz").words
    tersor.ok("decompress", "s.safetensors.tsr", "-o", "t.safetensors")
    assert not metadata_of("t.safetensors")


def test_metadata_without_an_array_to_keep_it_with_is_reported(tersor) -> None:
    safetensors.save_file({}, "s.safetensors", metadata={"format": "pt"})
    assert "format (metadata)" in tersor.ok("compress", "s.safetensors", "--abs", "1").words


def test_a_stream_gets_the_metadata_too(tersor) -> None:
    stream = io.BytesIO()
    write_safetensors({}, METADATA, Output(stream, None), lambda nbytes: None)
    (tersor.folder / "t.safetensors").write_bytes(stream.getvalue())
    assert metadata_of("t.safetensors") == METADATA


def test_metadata_of_an_array_is_its_own(tersor) -> None:
    """Only what a ``.safetensors`` file said about itself goes back into one."""
    with Writer("x.tsr") as writer:
        writer.add("a", torch.ones(4), create("raw"), {"unit": "m"})
    tersor.ok("decompress", "x.tsr", "-o", "t.safetensors")
    assert not metadata_of("t.safetensors")
