"""Whatever a user gets wrong is one sentence and an exit code, never a traceback or a file."""

from __future__ import annotations

import io
import os
import resource
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _files(tersor, noise) -> None:
    np.save("good.npy", noise)
    tersor.ok("compress", "good.npy", "--rel", "0.01", "-o", "good.tsr")
    np.save("object.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    np.save("text.npy", np.array(["a", "b"]))
    np.save("fields.npy", np.zeros(3, dtype=[("a", "f4"), ("é", "f4")]))
    np.save("void.npy", np.zeros(3, "V0"))
    for name, shape, values in (("deep", (1,) * 40, bytes(4)), ("vast", (0, 2**62), b"")):
        header = io.BytesIO()
        described = {"descr": "<f4", "fortran_order": name == "deep", "shape": shape}
        np.lib.format.write_array_header_1_0(header, described)
        Path(f"{name}.npy").write_bytes(header.getvalue() + values)
        with zipfile.ZipFile(f"{name}.npz", "w") as archive:
            archive.writestr("x.npy", header.getvalue() + values)
    data = Path("good.npy").read_bytes()
    Path("short.npy").write_bytes(data[:-1])
    Path("long.npy").write_bytes(data + b"0")
    Path("garbage.npy").write_bytes(b"\x93NUMPY\x01\x00\x10\x00{'descr': (((((((")
    Path("empty.npy").write_bytes(b"")
    Path("empty.bin").write_bytes(b"")
    Path("bad.npz").write_bytes(b"PK\x03\x04garbage")
    with zipfile.ZipFile("lying.npz", "w") as archive:
        archive.writestr("x.npy", data[:500])
    Path("bad.pt").write_bytes(b"garbage")
    Path("bad.safetensors").write_bytes(b"\xff" * 20)
    Path("data.bin").write_bytes(bytes(403))
    Path("folder.npy").mkdir()
    Path("damaged.tsr").write_bytes(Path("good.tsr").read_bytes()[:-5])


@pytest.mark.parametrize(
    ("line", "code", "way_out"),
    [
        ("", 2, "--help"),
        ("nonsense", 2, "--help"),
        ("compress", 2, "--help"),
        ("compress good.npy --nonsense", 2, "--help"),
        ("compress good.npy --rel abc", 2, "'--rel': 'abc' is not a number, as 1e-3 is"),
        ("compress good.npy --abs x", 2, "'--abs': 'x' is not a number"),
        ("compress good.npy", 2, "--abs E or --rel R"),
        ("compress good.npy --rel nan", 2, "finite"),
        ("compress good.npy --abs inf", 2, "finite"),
        ("compress good.npy --abs -1", 2, "at least 0"),
        ("compress good.npy --abs 1 --rel 1", 2, "not both"),
        ("compress good.npy --rel 0.1 --codec nope", 2, "known are"),
        ("compress good.npy --rel 0.1 --codec raw", 2, "leave out"),
        ("compress good.npy --rel 0.1 --codec flat --option nope=1", 2, "lorenzo"),
        ("compress good.npy --rel 0.1 --codec flat --option bound=1", 2, "lorenzo"),
        ("compress good.npy --rel 0.1 --option lorenzo=2", 2, "--codec ID"),
        ("compress good.npy --rel 0.1 --codec flat --option lorenzo", 2, "key=value"),
        ("compress good.npy --rel 0.1 --codec flat --option lorenzo=x", 2, "0, 1, 2 or 3"),
        ("compress good.npy --rel 0.1 --codec flat --option block=[1]", 2, "block"),
        ("compress good.npy --rel 0.1 --codec zstd --option level=x", 2, "level"),
        ("compress good.npy --rel 0.1 --codec lz4 --option acceleration={}", 2, "acceleration"),
        ("compress good.npy --codec fp8 --option group=0.5", 2, "group"),
        ("compress good.npy --rel 0.1 --chunk-values 0", 2, "--chunk-values"),
        ("compress good.npy --rel 0.1 --threads 0", 2, "--threads"),
        ("compress good.npy --rel 0.1 --dtype f32", 2, "leave out"),
        ("compress good.npy --rel 0.1 --json -o -", 2, "drop one"),
        ("compress good.npy --rel 0.1 -o folder.npy", 2, "name a file"),
        ("compress good.npy --rel 0.1 -o nowhere/x.tsr", 2, "folder"),
        ("compress missing.npy --rel 0.1", 2, "check the path"),
        ("compress missing.unknown --rel 0.1", 2, "check the path"),
        ("compress missing.npz --rel 0.1", 2, "check the path"),
        ("compress missing.pt --rel 0.1", 2, "check the path"),
        ("compress missing.safetensors --rel 0.1", 2, "check the path"),
        ("compress folder.npy --rel 0.1", 2, "name a file"),
        ("compress object.npy --rel 0.1", 2, "float32"),
        ("compress text.npy --rel 0.1", 2, "float32"),
        ("compress fields.npy --rel 0.1", 2, "float32"),
        ("compress void.npy --codec raw", 2, "an array of numbers"),
        ("compress deep.npy --codec raw", 2, "'deep.npy': a shape of 40 sizes"),
        ("compress deep.npz --codec raw", 2, "'deep.npz': a shape of 40 sizes"),
        ("compress vast.npy --rel 0.1", 2, "reshape"),
        ("compress vast.npz --rel 0.1", 2, "reshape"),
        ("compress empty.bin --dtype f32 --shape 0,900000000000000000,9 --rel 0.1 -o x.tsr", 2, "reshape"),
        ("compress short.npy --rel 0.1", 1, "cut short"),
        ("compress long.npy --rel 0.1", 1, "one array per file"),
        ("compress garbage.npy --rel 0.1", 1, "not a .npy file"),
        ("compress empty.npy --rel 0.1", 1, "not a .npy file"),
        ("compress bad.npz --rel 0.1", 1, "fresh copy"),
        ("compress lying.npz --rel 0.1", 1, "fresh copy"),
        ("compress bad.pt --rel 0.1", 2, "state_dict"),
        ("compress bad.safetensors --rel 0.1", 1, "fresh copy"),
        ("compress data.bin --rel 0.1", 2, "--dtype"),
        ("compress data.bin --rel 0.1 --shape 4", 2, "--dtype"),
        ("compress data.bin --rel 0.1 --dtype f99", 2, "choose from"),
        ("compress data.bin --rel 0.1 --dtype f32", 2, "--dtype"),
        ("compress data.bin --rel 0.1 --dtype u8 --shape 5,x", 2, "commas"),
        ("compress data.bin --rel 0.1 --dtype u8 --shape 404", 2, "--shape"),
        ("compress data.bin --rel 0.1 --dtype f32 --shape 99999999999,99999999", 2, "--shape"),
        ("decompress missing.tsr", 2, "check the path"),
        ("decompress good.npy", 1, "'good.npy': this is not a tersor file; to make one: tersor"),
        ("decompress damaged.tsr", 1, "'damaged.tsr': the file is cut short"),
        ("decompress good.tsr -o x.jpg", 2, "--raw"),
        ("decompress good.tsr --array nope", 2, "'good'"),
        ("decompress good.tsr -o x.npy --dtype f16", 2, "afterwards"),
        ("decompress good.tsr -o good.npy", 2, "--force"),
        ("inspect missing.tsr", 2, "check the path"),
        ("inspect good.npy", 1, "to make one: tersor compress FILE"),
        ("verify data.bin", 1, "to make one: tersor compress FILE"),
        ("verify good.npy damaged.tsr", 1, "'damaged.tsr'"),
        ("inspect folder.npy", 2, "name a file"),
        ("verify good.npy", 2, "verify A B"),
        ("verify good.tsr --abs 1", 2, "verify A B"),
        ("verify good.npy missing.tsr", 2, "check the path"),
        ("verify good.npy good.tsr --dtype f32", 2, "leave out"),
        ("verify - -", 2, "only one"),
        ("verify damaged.tsr", 1, "cut short"),
        ("bench", 2, "--help"),
        ("bench kernels --device tpu", 2, "cpu"),
        ("bench kernels --threads x", 2, "commas"),
        ("bench kernels --threads 0", 2, "at least 1"),
        ("bench kernels --bounds nan", 2, "above 0"),
        ("bench kernels --rounds 0", 2, "at least 1"),
        ("bench kernels --inputs nope", 2, "choose from"),
        ("bench kernels --codecs nope --inputs field --smoke", 2, "known are"),
        ("bench kernels --resume", 2, "--output"),
        ("bench memory --codec raw", 2, "choose"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_with_the_way_out(tersor, line, code, way_out) -> None:
    assert way_out in tersor.refused(*line.split(), code=code)


@pytest.mark.parametrize(
    ("name", "code", "way_out"),
    [
        ("data.bin", 2, "--dtype"),
        ("empty.npy", 2, "--dtype"),
        ("good.tsr", 2, "not a .npy file"),
        ("bad.npz", 2, "save it as a file"),
        ("short.npy", 1, "cut short"),
        ("garbage.npy", 1, "not a .npy file"),
    ],
)
def test_wrong_usage_of_standard_input_has_the_exit_code_of_wrong_usage(
    tersor, monkeypatch, name, code, way_out
) -> None:
    with Path(name).open("rb") as stream:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
        words = tersor.refused("compress", "-", "-o", "x.tsr", "--rel", "0.1", code=code)
    assert "standard input" in words
    assert way_out in words


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_one_sentence(tersor) -> None:
    Path("good.npy").chmod(0)
    assert "permission" in tersor.refused("compress", "good.npy", "--rel", "0.1")


@pytest.mark.parametrize("output", ["o.pt", "o.safetensors", "o.npz", "o.npy"])
def test_a_file_that_cannot_become_as_large_is_one_sentence(tersor, output) -> None:
    # beyond what is held back before it is written
    np.save("large.npy", np.zeros(2**18, np.float32))
    tersor.ok("compress", "large.npy", "--codec", "raw", "-o", "large.tsr")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**12, before[1]))
    try:
        words = tersor.refused("decompress", "large.tsr", "-o", output, code=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "larger than this system allows" in words


@pytest.mark.parametrize("output", ["loop.tsr", "loop.tsr/x.tsr"])
def test_a_link_that_leads_to_itself_is_one_sentence(tersor, output) -> None:
    Path("loop.tsr").symlink_to("loop.tsr")
    words = tersor.refused("compress", "good.npy", "--rel", "0.1", "-o", output)
    assert "loop.tsr" in words
    assert ".tmp" not in words
    if output == "loop.tsr":
        assert "leads back to itself" in words
        assert "leads back to itself" in tersor.refused("inspect", "loop.tsr")


def test_a_folder_that_may_not_be_written_is_one_sentence(tersor, monkeypatch) -> None:
    def refuse(self, *arguments, **keywords):
        raise PermissionError(13, "Permission denied", str(self))

    original_open = Path.open
    monkeypatch.setattr(
        Path,
        "open",
        lambda self, mode="r", *rest: (
            refuse(self) if "x" in mode else original_open(self, mode, *rest)
        ),
    )
    words = tersor.refused("compress", "good.npy", "--rel", "0.1")
    assert "permission" in words
    assert "'good.npy.tsr'" in words
