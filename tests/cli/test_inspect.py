from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tersor import Reader, Writer, create


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
