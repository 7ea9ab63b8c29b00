"""A lack of memory, or a limit of it, is one sentence."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from tersor import Reader, load
from tests.checks import assert_bits_equal


@pytest.fixture
def many(tersor) -> None:
    """An array of 40 kB in chunks of 400 bytes."""
    np.save("x.npy", np.arange(10_000, dtype=np.float32))
    tersor.ok("compress", "x.npy", "--codec", "raw", "--chunk-values", "100")


@pytest.mark.parametrize("form", ["npy", "npz", "raw"])
def test_what_is_written_in_chunks_takes_no_more_than_a_chunk(tersor, many, form) -> None:
    options = ("--raw",) if form == "raw" else ()
    tersor.ok("decompress", "x.npy.tsr", "-o", f"y.{form}", *options, "--max-memory", "10K")
    assert Path(f"y.{form}").stat().st_size >= 40_000
    tersor.ok("verify", "x.npy.tsr", "--max-memory", "10K")
    tersor.ok("verify", "x.npy", "x.npy.tsr", "--max-memory", "10K")
    tersor.ok("inspect", "x.npy.tsr", "--max-memory", "10K")


@pytest.mark.parametrize("form", ["pt", "safetensors"])
def test_what_is_written_as_a_whole_must_fit(tersor, many, form) -> None:
    pytest.importorskip("safetensors")
    line = ("decompress", "x.npy.tsr", "-o", f"y.{form}", "--max-memory")
    words = tersor.refused(*line, "39K", code=1)
    assert ".npz" in words
    assert "--max-memory" in words
    tersor.ok(*line, "40000")


@pytest.mark.parametrize(
    "line",
    [
        "decompress x.npy.tsr -o y.npy --max-memory 79999",
        "verify x.npy.tsr --max-memory 79999",
        "verify x.npy x.npy.tsr --max-memory 79999",
        "inspect x.npy.tsr --max-memory 100",
    ],
)
def test_more_than_the_limit_is_one_sentence(tersor, line) -> None:
    np.save("x.npy", np.arange(10_000, dtype=np.float32))
    # one chunk: its values and its bytes take 80,000
    tersor.ok("compress", "x.npy", "--codec", "raw")
    assert "--max-memory" in tersor.refused(*line.split(), code=1)
    tersor.ok(*line.replace("79999", "80000").replace(" 100", " 1000").split())


def test_compress_reads_no_more_than_a_chunk_that_fits(tersor) -> None:
    np.save("x.npy", np.arange(10_000, dtype=np.float32))
    words = tersor.refused("compress", "x.npy", "--codec", "raw", "--max-memory", "79999", code=1)
    assert "--chunk-values" in words
    assert not Path("x.npy.tsr").exists()
    small = ("--chunk-values", "100", "--max-memory", "800")
    tersor.ok("compress", "x.npy", "--codec", "raw", *small)


@pytest.mark.parametrize("size", ["", "4X", "-1", "1e9", "G"])
def test_what_is_no_size_is_refused(tersor, many, size) -> None:
    words = tersor.refused("inspect", "x.npy.tsr", "--max-memory", size)
    assert "512M" in words


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 4.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate"),
        torch.cuda.OutOfMemoryError("CUDA out of memory."),
    ],
    ids=["numpy", "torch", "cuda"],
)
def test_a_lack_of_memory_is_one_sentence(tersor, many, monkeypatch, error) -> None:
    def fail(*_arguments):
        raise error

    monkeypatch.setattr(Reader, "_decode", fail)
    for line in (("decompress", "x.npy.tsr", "-o", "y.npy"), ("verify", "x.npy.tsr")):
        assert "memory" in tersor.refused(*line, code=1)


def fortran_archive(name: str, x: np.ndarray) -> None:
    np.savez_compressed(name, a=np.asfortranarray(x), b=np.ones(3, np.float32))


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<i2"])
def test_a_fortran_array_in_an_archive_comes_back(tersor, dtype) -> None:
    x = np.random.default_rng(0).integers(-99, 99, (5, 7, 3)).astype(dtype)
    fortran_archive("x.npz", x)
    for chunk_values in ("4", "21", "1000"):
        line = ("compress", "x.npz", "--codec", "raw", "--force", "--chunk-values", chunk_values)
        tersor.ok(*line)
        native = x.astype(x.dtype.newbyteorder("="))
        assert_bits_equal(load("x.npz.tsr")["a"], torch.from_numpy(native))
    tersor.ok("verify", "x.npz", "x.npz.tsr")


def test_a_fortran_array_in_an_archive_that_does_not_fit_is_refused_unread(tersor) -> None:
    fortran_archive("x.npz", np.zeros((1000, 1000), np.float32))
    line = ("compress", "x.npz", "--rel", "0.1", "--max-memory")
    words = tersor.refused(*line, "7M", code=1)
    assert "'a.npy' of 'x.npz'" in words
    assert "order='C'" in words
    tersor.ok(*line, "8M")


def test_a_fortran_array_is_not_read_before_it_is_its_turn(tersor, monkeypatch) -> None:
    fortran_archive("x.npz", np.zeros((100, 100), np.float32))
    reads = []
    read = zipfile.ZipExtFile.read
    monkeypatch.setattr(
        zipfile.ZipExtFile, "read", lambda self, n=-1: (reads.append(n), read(self, n))[1]
    )
    tersor.refused("compress", "x.npz", "--rel", "0.1", "--max-memory", "1K", code=1)
    assert max(reads) < 40_000
