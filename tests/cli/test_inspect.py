from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch

from tersor import Reader, Writer, create
from tersor.codecs import registry
from tersor.codecs.raw import Raw


def test_json_tells_what_the_index_tells(tersor, noise) -> None:
    np.savez("m.npz", a=noise, i=np.arange(4))
    tersor.ok("compress", "m.npz", "--rel", "0.01", "--chunk-values", "5000")
    found = tersor.ok("inspect", "m.npz.tsr", "--json", "--chunks").json
    assert found["encoded_nbytes"] == Path("m.npz.tsr").stat().st_size
    with Reader("m.npz.tsr") as reader:
        for array, entry in zip(found["arrays"], reader.arrays.values(), strict=True):
            assert array["name"] == entry.name
            assert array["shape"] == list(entry.info.shape)
            assert array["codec"] == entry.codec.to_config()
            assert array["error_bound"] == entry.error_bound
            assert array["reason"] == entry.reason
            assert array["ratio"] == entry.ratio
            assert array["num_chunks"] == len(array["chunks"]) == len(entry.sections)
            assert [chunk["offset"] for chunk in array["chunks"]] == [
                s.offset for s in entry.sections
            ]


def test_people_see_names_shapes_codecs_bounds_and_reasons(tersor, noise) -> None:
    np.save("field.npy", noise)
    tersor.ok("compress", "field.npy", "--rel", "0.01")
    shown = tersor.ok("inspect", "field.npy.tsr", "--chunks").out
    for words in ("field", "300 x 40", "f32", "relative 0.01", "smallest of", "chunks of field"):
        assert words in shown


def test_only_the_header_is_read(tersor, noise) -> None:
    np.save("x.npy", noise)
    tersor.ok("compress", "x.npy", "--rel", "0.01")
    whole = tersor.ok("inspect", "x.npy.tsr", "--json").json
    data = bytearray(Path("x.npy.tsr").read_bytes())
    data[100:200] = bytes(100)
    Path("x.npy.tsr").write_bytes(data)
    assert tersor.ok("inspect", "x.npy.tsr", "--json").json == whole
    tersor.refused("verify", "x.npy.tsr", code=1)


def test_names_and_reasons_cannot_drive_the_terminal(tersor) -> None:
    nasty = "\x1b[2J[red]x[/red]\x07"
    with Writer("x.tsr") as writer:
        writer.add(nasty, torch.zeros(3), create("raw"), {nasty: nasty}, reason=nasty)
    shown = tersor.ok("inspect", "x.tsr", "--chunks").out
    assert "\x1b" not in shown
    assert "\x07" not in shown
    # markup is shown, not obeyed
    assert shown.count("[red]x[/red]") >= 4


@pytest.fixture
def foreign_file(monkeypatch):
    """Write a file with an array of codec ``tally`` next to one of ``raw``; ``tally`` is then gone."""

    @dataclass(frozen=True, kw_only=True, slots=True)
    class Tally(Raw):
        codec_id: ClassVar[str] = "tally"
        depth: int = 3

    with monkeypatch.context() as patch:
        patch.setattr(registry, "_codecs", {**registry._codecs, "tally": Tally})
        with Writer("x.tsr") as writer:
            writer.add("kept", torch.zeros(3), create("raw"))
            writer.add("a", torch.zeros(20, 5), create("tally"), {"unit": "m"}, chunk_values=50)
            writer.add("b", torch.zeros(7), create("tally", depth=4))
    return "x.tsr"


def test_a_file_of_a_codec_that_is_not_installed_is_shown_as_far_as_its_header_goes(
    tersor, foreign_file
) -> None:
    shown = tersor.ok("inspect", foreign_file, "--chunks").out
    for words in ("kept", "20 x 5", "tally (depth=3)", "tally (depth=4)", "a: unit = m"):
        assert words in shown
    assert shown.count("codec 'tally' is not installed") == 1
    assert "chunks of a" in shown


def test_json_says_which_codec_is_not_installed(tersor, foreign_file) -> None:
    kept, a, b = tersor.ok("inspect", foreign_file, "--json").json["arrays"]
    assert kept["problem"] == ""
    assert kept["guarantee"] == "bit-exact"
    assert a["codec"] == {"id": "tally", "version": 1, "depth": 3}
    assert (a["shape"], a["dtype"], a["num_chunks"], a["encoded_nbytes"]) == (
        [20, 5],
        "f32",
        2,
        400,
    )
    assert a["guarantee"] is None
    assert "is not installed" in a["problem"] == b["problem"]


def test_a_newer_version_of_a_codec_is_shown_too(tersor, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Raw, "version", 2)
        with Writer("x.tsr") as writer:
            writer.add("x", torch.zeros(3), create("raw"))
    shown = tersor.ok("inspect", "x.tsr").out
    assert "codec 'raw' version 2 is newer than this tersor" in " ".join(shown.split())


def test_other_verbs_refuse_a_codec_that_is_not_installed(tersor, foreign_file) -> None:
    assert "unknown codec 'tally'" in tersor.refused("decompress", foreign_file, "-o", "y.npz")
