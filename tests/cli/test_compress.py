from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tersor import Bound, load, save
from tersor.cli.arrays import mapped
from tersor.cli.arrays.mapped import MappedSource
from tests.checks import assert_bits_equal, assert_within_bound


def _loaded(path: str) -> torch.Tensor:
    (x,) = load(path).values()
    return x


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<f2", ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_of_any_byte_order_and_layout_comes_back_in_the_bound(
    tersor, monkeypatch, dtype, order
) -> None:
    # small enough that a Fortran-ordered file takes several passes of several blocks
    monkeypatch.setattr(mapped, "_GATHER_NBYTES", 10_000)
    monkeypatch.setattr(mapped, "_BLOCK_NBYTES", 3_000)
    values = np.random.default_rng(1).standard_normal((50, 6, 7)).astype(dtype, order=order)
    np.save("x.npy", values)
    # 97 values per chunk: leading slices do not fit; 420: ten of them do
    for chunk_values in ("97", "420", "100000"):
        tersor.ok("compress", "x.npy", "--rel", "1e-3", "--force", "--chunk-values", chunk_values)
        original = torch.from_numpy(
            np.ascontiguousarray(values.astype(values.dtype.newbyteorder("=")))
        )
        assert_within_bound(original, _loaded("x.npy.tsr"), Bound.relative(1e-3))


@pytest.mark.parametrize("shape", [(), (0,), (0, 5), (1,), (3, 0, 2)])
def test_scalars_and_empty_arrays_come_back(tersor, shape) -> None:
    values = np.full(shape, 0.25, np.float32)
    np.save("x.npy", values)
    tersor.ok("compress", "x.npy", "--rel", "0.01")
    assert_bits_equal(torch.from_numpy(values), _loaded("x.npy.tsr"))


def test_special_values_come_back(tersor) -> None:
    values = np.array([1.0, np.nan, np.inf, -np.inf, 2.0, -0.0], np.float32)
    np.save("x.npy", values)
    tersor.ok("compress", "x.npy", "--rel", "0.1")
    assert_within_bound(torch.from_numpy(values), _loaded("x.npy.tsr"), Bound.relative(0.1))


def test_the_file_is_the_one_the_library_writes(tersor, noise) -> None:
    np.save("x.npy", noise)
    tersor.ok("compress", "x.npy", "--rel", "0.01", "--codec", "huffman")
    save("library.tsr", {"x": noise}, Bound.relative(0.01), codec="huffman")
    assert Path("x.npy.tsr").read_bytes() == Path("library.tsr").read_bytes()


def test_a_relative_bound_is_of_the_whole_array_not_of_a_chunk(tersor) -> None:
    np.save("x.npy", np.concatenate([np.linspace(0, 1, 1000), [101.0]]).astype(np.float32))
    done = tersor.ok("compress", "x.npy", "--rel", "0.01", "--chunk-values", "100", "--json")
    assert done.json["arrays"][0]["error_bound"] == 1.01
    assert done.json["arrays"][0]["num_chunks"] == 11


def test_no_more_than_a_chunk_of_a_mapped_file_is_read_at_a_time(
    tersor, noise, monkeypatch
) -> None:
    np.save("x.npy", noise)
    sizes = []
    read = MappedSource.chunk

    def chunk(self, chunk):
        sizes.append(chunk.stop - chunk.start)
        return read(self, chunk)

    monkeypatch.setattr(MappedSource, "chunk", chunk)
    tersor.ok("compress", "x.npy", "--rel", "0.01", "--chunk-values", "1000")
    assert max(sizes) <= 1000
    # the range, one sample, the values
    assert sum(sizes) == 2 * noise.size + 1000


def test_arrays_of_an_npz_are_kept_by_name_and_integers_exactly(tersor, noise) -> None:
    indices = np.arange(5)
    fortran = np.asfortranarray(noise.astype(">f8"))
    for write in (np.savez, np.savez_compressed):
        write("m.npz", **{"layer/w": noise, "i": indices, "f": fortran})
        tersor.ok("compress", "m.npz", "--rel", "0.01", "--force", "--chunk-values", "999")
        arrays = load("m.npz.tsr")
        assert list(arrays) == ["layer/w", "i", "f"]
        assert_within_bound(torch.from_numpy(noise), arrays["layer/w"], Bound.relative(0.01))
        assert_within_bound(torch.from_numpy(noise).double(), arrays["f"], Bound.relative(0.01))
        assert_bits_equal(torch.from_numpy(indices), arrays["i"])


def test_a_checkpoint_is_flattened_and_what_is_no_tensor_is_named(tersor) -> None:
    weight = torch.randn(20, 30, dtype=torch.bfloat16)
    state = {"model": {"w": weight, "t": weight.t(), "steps": torch.tensor(7)}, "epoch": 3}
    torch.save({"nets": [state]}, "c.pt")
    done = tersor.ok("compress", "c.pt", "--rel", "0.01", "--json")
    assert done.json["left_out"] == ["nets.0.epoch (int)"]
    arrays = load("c.pt.tsr")
    assert list(arrays) == ["nets.0.model.w", "nets.0.model.t", "nets.0.model.steps"]
    assert_within_bound(weight, arrays["nets.0.model.w"], Bound.relative(0.01))
    assert_within_bound(weight.t(), arrays["nets.0.model.t"], Bound.relative(0.01))
    assert_bits_equal(torch.tensor(7), arrays["nets.0.model.steps"])
    words = tersor.ok("compress", "c.pt", "--rel", "0.01", "--force").words
    assert words.splitlines()[0] == (
        "1 entry that is no tensor was left out, so this file cannot replace the original: "
        "nets.0.epoch (int)"
    )


def test_many_left_out_entries_are_one_line(tersor) -> None:
    torch.save({"w": torch.randn(20, 30)} | {f"e{i}": i for i in range(20)}, "c.pt")
    lines = tersor.ok("compress", "c.pt", "--rel", "0.01").words.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("20 entries that are no tensors were left out")
    assert lines[0].endswith("e0 (int), e1 (int), e2 (int), ...")


def test_keys_of_a_checkpoint_that_make_one_name_are_reported(tersor) -> None:
    torch.save({"a.b": torch.zeros(3), "a": {"b": torch.ones(3)}}, "c.pt")
    words = tersor.refused("compress", "c.pt", "--rel", "0.01")
    assert "['a.b']" in words
    assert "['a']['b']" in words


def test_a_bound_as_wide_as_the_range_is_reported(tersor, noise) -> None:
    np.save("x.npy", noise)
    for relative, is_reported in (("1", True), ("2.5", True), ("0.5", False)):
        done = tersor.ok("compress", "x.npy", "--rel", relative, "--force")
        assert ("the whole range" in done.err) is is_reported
    assert "the whole range" not in tersor.ok("compress", "x.npy", "--abs", "9", "--force").err


def test_a_short_array_is_stored_as_it_is(tersor) -> None:
    bias = np.random.default_rng(1).standard_normal(10, dtype=np.float32)
    np.save("bias.npy", bias)
    array = tersor.ok("compress", "bias.npy", "--rel", "1e-3", "--json").json["arrays"][0]
    assert array["codec"]["id"] == "raw"
    assert array["error_bound"] is None
    assert_bits_equal(torch.from_numpy(bias), _loaded("bias.npy.tsr"))
    tersor.ok("verify", "bias.npy", "bias.npy.tsr")


def test_a_checkpoint_of_the_old_format_is_read(tersor, noise) -> None:
    torch.save({"w": torch.from_numpy(noise)}, "c.pt", _use_new_zipfile_serialization=False)
    tersor.ok("compress", "c.pt", "--abs", "0.01")
    assert_within_bound(torch.from_numpy(noise), _loaded("c.pt.tsr"), 0.01)


def test_code_in_a_checkpoint_is_refused_and_not_run(tersor) -> None:
    class Evil:
        def __reduce__(self):
            return (Path("ran").touch, ())

    torch.save({"w": torch.zeros(3), "evil": Evil()}, "c.pt")
    assert "state_dict" in tersor.refused("compress", "c.pt", "--rel", "0.01")
    assert not Path("ran").exists()


def test_safetensors_are_read(tersor, noise) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    tensors = {"w": torch.from_numpy(noise).bfloat16(), "i": torch.arange(4)}
    safetensors.save_file(tensors, "s.safetensors")
    tersor.ok("compress", "s.safetensors", "--rel", "0.01")
    arrays = load("s.safetensors.tsr")
    assert_within_bound(tensors["w"], arrays["w"], Bound.relative(0.01))
    assert_bits_equal(tensors["i"], arrays["i"])


def test_without_the_package_safetensors_the_way_out_is_named(tersor, monkeypatch) -> None:
    Path("s.safetensors").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert "tersor[io]" in tersor.refused("compress", "s.safetensors", "--rel", "0.01")


@pytest.mark.parametrize(
    "dtype", ["f32", "bf16", "f64", "i32", "float32", "float64", "float16", "bfloat16", "int8"]
)
def test_raw_binary_is_described_by_dtype_and_shape(tersor, dtype) -> None:
    from tersor.types import DTYPES

    x = (torch.randn(30, 20) * 100).to(DTYPES.get(dtype) or getattr(torch, dtype))
    Path("x.bin").write_bytes(x.view(torch.uint8).numpy().tobytes())
    described = ("--dtype", dtype, "--shape", "30,20")
    tersor.ok("compress", "x.bin", "--abs", "0.5", *described)
    back = _loaded("x.bin.tsr")
    if dtype in ("i32", "int8"):
        assert_bits_equal(x, back)
    else:
        assert_within_bound(x, back, 0.5)
    done = tersor.ok("compress", "x.bin", "--abs", "0.5", "--dtype", dtype, "--force", "--json")
    assert done.json["arrays"][0]["shape"] == [600]


@pytest.mark.parametrize("raw", [False, True])
def test_standard_input_is_read(tersor, noise, monkeypatch, raw) -> None:
    stream = io.BytesIO()
    if raw:
        stream.write(noise.tobytes())
    else:
        np.save(stream, noise)
    stream.seek(0)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
    described = ("--dtype", "f32", "--shape", "300,40") if raw else ()
    tersor.ok("compress", "-", "-o", "out.tsr", "--rel", "0.01", *described)
    assert_within_bound(torch.from_numpy(noise), _loaded("out.tsr"), Bound.relative(0.01))


def test_integers_alone_are_stored_exactly_by_auto_and_refused_by_a_lossy_codec(tersor) -> None:
    np.save("i.npy", np.arange(100))
    tersor.ok("compress", "i.npy", "--rel", "0.1")
    assert_bits_equal(torch.arange(100), _loaded("i.npy.tsr"))
    words = tersor.refused("compress", "i.npy", "--rel", "0.1", "--codec", "flat", "-o", "j.tsr")
    assert "raw" in words


def test_options_reach_the_codec(tersor, noise) -> None:
    np.save("x.npy", noise)
    command = ("compress", "x.npy", "--force", "--json")
    flat = (*command, "--rel", "0.01", "--codec", "flat")
    done = tersor.ok(*flat, "--option", "lorenzo=2", "--option", "base=true")
    assert done.json["arrays"][0]["codec"]["lorenzo"] == 2
    assert done.json["arrays"][0]["codec"]["base"] is True
    rows = (*command, "--rel", "0.01", "--codec", "rows", "--option", "entropy=ans")
    assert tersor.ok(*rows).json["arrays"][0]["codec"]["entropy"] == "ans"
    half = tersor.ok(*command, "--codec", "half").json["arrays"][0]
    assert half["codec"]["id"] == "half"
    assert half["error_bound"] is None


def test_auto_says_why_it_chose(tersor, noise) -> None:
    np.save("x.npy", noise)
    array = tersor.ok("compress", "x.npy", "--rel", "0.01", "--json").json["arrays"][0]
    assert array["codec"]["id"] in array["reason"]
    assert array["codec"]["id"] != "auto"


def test_sizes_and_ratio_are_those_of_the_file(tersor, noise) -> None:
    np.save("x.npy", noise)
    done = tersor.ok("compress", "x.npy", "--rel", "0.01", "--json").json
    assert done["encoded_nbytes"] == Path("x.npy.tsr").stat().st_size
    assert done["ratio"] == noise.nbytes / done["encoded_nbytes"]


def test_the_summary_names_ratio_sizes_codec_and_bound(tersor, noise) -> None:
    np.save("x.npy", noise)
    done = tersor.ok("compress", "x.npy", "--abs", "0.125", "--codec", "flat")
    assert done.out == ""
    for word in ("x.npy.tsr", "ratio", "46.9 KiB", "flat", "0.125"):
        assert word in done.err


def test_an_existing_file_is_only_overwritten_with_force(tersor, noise) -> None:
    np.save("x.npy", noise)
    Path("x.npy.tsr").write_text("precious")
    assert "--force" in tersor.refused("compress", "x.npy", "--rel", "0.01")
    assert Path("x.npy.tsr").read_text() == "precious"
    tersor.ok("compress", "x.npy", "--rel", "0.01", "--force")
    _loaded("x.npy.tsr")


def test_an_interrupt_leaves_no_file(tersor, noise, monkeypatch) -> None:
    np.save("x.npy", noise)
    read, calls = MappedSource.chunk, []

    def chunk(self, chunk):
        calls.append(chunk)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return read(self, chunk)

    monkeypatch.setattr(MappedSource, "chunk", chunk)
    tersor.refused("compress", "x.npy", "--abs", "0.01", "--chunk-values", "1000", code=130)


def test_a_full_disk_is_one_sentence(tersor, noise) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no device that is always full")
    np.save("x.npy", noise)
    assert "disk is full" in tersor.refused(
        "compress", "x.npy", "--abs", "1", "-o", "/dev/full", code=1
    )
