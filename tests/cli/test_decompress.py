from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from tersor import Bound, Writer, create, load
from tersor.types import DTYPES
from tests.checks import assert_bits_equal


def _write(arrays: dict[str, torch.Tensor], chunk_values: int = 100) -> None:
    with Writer("x.tsr") as writer:
        for name, x in arrays.items():
            writer.add(name, x, create("raw"), chunk_values=chunk_values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int8, torch.complex64, torch.bool, torch.uint16])  # fmt: skip
@pytest.mark.parametrize("shape", [(), (0,), (7, 31), (2, 3, 4)])
def test_one_array_becomes_npy_as_numpy_reads_it(tersor, dtype, shape) -> None:
    x = (torch.randn(shape) * 50).to(dtype)
    _write({"any": x})
    tersor.ok("decompress", "x.tsr")
    found = np.load("x.npy", allow_pickle=False)
    assert_bits_equal(x, torch.from_numpy(found))
    assert found.flags.c_contiguous


def test_what_is_written_is_what_the_library_decodes(tersor, noise) -> None:
    np.save("n.npy", noise)
    tersor.ok("compress", "n.npy", "--rel", "0.01", "--chunk-values", "1000")
    tersor.ok("decompress", "n.npy.tsr", "-o", "back.npy")
    assert_bits_equal(load("n.npy.tsr")["n"], torch.from_numpy(np.load("back.npy")))


def test_several_arrays_become_npz_pt_or_safetensors(tersor) -> None:
    arrays = {"layer.w": torch.randn(30, 10), "i": torch.arange(5), "s": torch.tensor(2.5)}
    _write(arrays)
    tersor.ok("decompress", "x.tsr")
    with np.load("x.npz", allow_pickle=False) as found:
        assert list(found) == list(arrays)
        for name, x in arrays.items():
            assert_bits_equal(x, torch.from_numpy(found[name]))
    tersor.ok("decompress", "x.tsr", "-o", "x.pt")
    state = torch.load("x.pt", weights_only=True)
    safetensors = pytest.importorskip("safetensors.torch")
    tersor.ok("decompress", "x.tsr", "-o", "x.safetensors")
    tensors = safetensors.load_file("x.safetensors")
    for name, x in arrays.items():
        assert_bits_equal(x, state[name])
        assert_bits_equal(x, tensors[name])


def test_one_of_several_is_chosen_by_name(tersor) -> None:
    _write({"a": torch.zeros(3), "b": torch.ones(4)})
    assert "--array" in tersor.refused("decompress", "x.tsr", "-o", "b.npy")
    assert "--array" in tersor.refused("decompress", "x.tsr", "--raw")
    tersor.ok("decompress", "x.tsr", "-o", "b.npy", "--array", "b")
    assert np.load("b.npy").tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64])
def test_raw_output_is_the_bytes_of_the_values(tersor, dtype) -> None:
    x = (torch.randn(20, 30) * 10).to(dtype)
    _write({"any": x})
    tersor.ok("decompress", "x.tsr", "--raw", "-o", "x.bin")
    assert Path("x.bin").read_bytes() == x.view(torch.uint8).numpy().tobytes()


def test_bf16_needs_a_way_out_of_numpy(tersor) -> None:
    x = torch.randn(20, 30).bfloat16()
    _write({"w": x})
    assert "--dtype f32" in tersor.refused("decompress", "x.tsr")
    assert "--dtype f32" in tersor.refused("decompress", "x.tsr", "-o", "x.npz")
    tersor.ok("decompress", "x.tsr", "--dtype", "f32")
    assert_bits_equal(x.float(), torch.from_numpy(np.load("x.npy")))
    tersor.ok("decompress", "x.tsr", "-o", "x.pt")
    assert_bits_equal(x, torch.load("x.pt", weights_only=True)["w"])


@pytest.mark.parametrize(("own", "wanted"), [("f64", "f32"), ("f32", "f16"), ("f32", "bf16"), ("f16", "bf16"), ("f32", "i32")])  # fmt: skip
def test_no_conversion_that_could_break_the_promise(tersor, own, wanted) -> None:
    from tersor.types import DTYPES

    _write({"w": torch.randn(5).to(DTYPES[own])})
    assert "promised error" in tersor.refused(
        "decompress", "x.tsr", "-o", "y.pt", "--dtype", wanted
    )


HOSTILE = ("../../up", "/absolute", "..\\windows", "a/../../b", "", ".", "new\nline", "up")


def test_hostile_names_stay_inside_the_archive(tersor) -> None:
    _write({name: torch.full((2,), float(i)) for i, name in enumerate(HOSTILE)})
    done = tersor.ok("decompress", "x.tsr", "-o", "x.npz")
    assert "'../../up' is written as 'up'" in done.err
    with zipfile.ZipFile("x.npz") as archive:
        names = archive.namelist()
    assert len(set(names)) == len(HOSTILE)
    for name in names:
        assert name.isprintable()
        assert "\\" not in name
        assert not name.startswith("/")
        assert ".." not in name.split("/")
    with np.load("x.npz") as found:
        assert [float(found[name][0]) for name in found] == list(range(len(HOSTILE)))


def test_a_hostile_name_of_a_single_array_names_no_file(tersor) -> None:
    _write({"../evil": torch.zeros(3)})
    tersor.ok("decompress", "x.tsr")
    assert sorted(path.name for path in tersor.folder.iterdir()) == ["x.npy", "x.tsr"]
    assert not (tersor.folder.parent / "evil.npy").exists()


def test_the_default_name_is_the_one_before_compressing(tersor, noise) -> None:
    np.save("a.npy", noise)
    tersor.ok("compress", "a.npy", "--rel", "0.1")
    assert "a.npy" in tersor.refused("decompress", "a.npy.tsr")
    Path("a.npy").unlink()
    done = tersor.ok("decompress", "a.npy.tsr", "--json")
    assert done.json["output"] == "a.npy"
    np.savez("m.npz", a=noise, b=noise)
    tersor.ok("compress", "m.npz", "--rel", "0.1", "-o", "m.npy.tsr")
    assert tersor.ok("decompress", "m.npy.tsr", "--force", "--json").json["output"] == "m.npz"
    Path("noise.f32").write_bytes(noise.tobytes())
    tersor.ok("compress", "noise.f32", "--rel", "0.1", "--dtype", "f32")
    assert tersor.ok("decompress", "noise.f32.tsr", "--json").json["output"] == "noise.f32.npy"
    raw = tersor.ok("decompress", "noise.f32.tsr", "--raw", "--force", "--json")
    assert raw.json["output"] == "noise.f32"


def test_a_damaged_chunk_leaves_no_output(tersor, noise) -> None:
    np.save("a.npy", noise)
    tersor.ok("compress", "a.npy", "--rel", "0.01", "--chunk-values", "4000")
    data = bytearray(Path("a.npy.tsr").read_bytes())
    # in the last chunk, so that others are decoded and written before
    data[len(data) * 2 // 3] ^= 1
    Path("a.npy.tsr").write_bytes(data)
    for form in ("b.npy", "b.npz", "b.pt", "b.safetensors"):
        assert "damaged" in tersor.refused("decompress", "a.npy.tsr", "-o", form, code=1)


def test_a_file_without_arrays_is_an_empty_archive(tersor) -> None:
    _write({})
    tersor.ok("decompress", "x.tsr")
    with np.load("x.npz") as found:
        assert list(found) == []


def test_bound_holds_after_widening(tersor) -> None:
    x = torch.randn(50, 20).bfloat16()
    torch.save({"w": x}, "c.pt")
    tersor.ok("compress", "c.pt", "--rel", "0.01")
    tersor.ok("decompress", "c.pt.tsr", "-o", "w.npy", "--dtype", "f64")
    worst = np.abs(np.load("w.npy") - x.double().numpy()).max()
    assert worst <= Bound.relative(0.01).resolve(float(x.min()), float(x.max()))


def test_a_name_that_safetensors_keeps_for_itself_is_refused(tersor) -> None:
    pytest.importorskip("safetensors")
    _write({"__metadata__": torch.zeros(2), "w": torch.ones(2)})
    words = tersor.refused("decompress", "x.tsr", "-o", "x.safetensors")
    assert "'__metadata__'" in words
    assert ".npz or .pt" in words
    tersor.ok("decompress", "x.tsr", "-o", "x.safetensors", "--array", "w")
    tersor.ok("decompress", "x.tsr", "-o", "x.npz")


@pytest.mark.parametrize("dtype", DTYPES)
def test_safetensors_holds_a_dtype_or_says_so(tersor, dtype) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    x = torch.zeros(3, dtype=DTYPES[dtype])
    _write({"w": torch.ones(2), "x": x})
    if dtype == "c128":
        words = tersor.refused("decompress", "x.tsr", "-o", "x.safetensors")
        assert "no dtype for c128; write to .pt" in words
    else:
        tersor.ok("decompress", "x.tsr", "-o", "x.safetensors")
        assert_bits_equal(safetensors.load_file("x.safetensors")["x"], x)


@pytest.mark.parametrize(("letter", "longest"), [("n", 65_531), ("ü", 32_765)])
def test_a_name_too_long_for_an_archive_is_refused(tersor, letter, longest) -> None:
    _write({letter * longest: torch.zeros(2), "w": torch.ones(2)})
    tersor.ok("decompress", "x.tsr", "-o", "x.npz")
    with np.load("x.npz") as found:
        assert list(found) == [letter * longest, "w"]
    _write({letter * (longest + 1): torch.zeros(2), "w": torch.ones(2)})
    words = tersor.refused("decompress", "x.tsr", "-o", "y.npz")
    assert ".pt or .safetensors" in words
    assert len(words) < 300
    tersor.ok("decompress", "x.tsr", "-o", "y.pt")
