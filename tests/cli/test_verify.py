"""``verify`` is only worth its name if it finds what is planted here."""

from __future__ import annotations

import io
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tersor import Bound, Writer, create
from tersor.cli.comparison import Comparison


def _pair(original: np.ndarray, decoded: np.ndarray) -> None:
    np.save("a.npy", original)
    np.save("b.npy", decoded)


def test_an_exact_copy_holds_a_bound_of_zero(tersor, noise) -> None:
    noise[3, 4], noise[5, 6], noise[7, 8] = np.nan, np.inf, -np.inf
    _pair(noise, noise)
    array = tersor.ok("verify", "a.npy", "b.npy", "--abs", "0", "--json").json["arrays"][0]
    assert array["holds"] is True
    assert array["max_error"] == 0
    assert array["psnr_db"] is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_an_error_just_over_the_bound_is_found(tersor, dtype) -> None:
    values = np.linspace(0, 1, 5000).astype(dtype)
    wrong = values.copy()
    wrong[4321] = dtype(values[4321] + dtype(0.25))
    error = abs(float(wrong[4321]) - float(values[4321]))
    _pair(values, wrong)
    tersor.ok("verify", "a.npy", "b.npy", "--abs", repr(error))
    done = tersor("verify", "a.npy", "b.npy", "--abs", repr(math.nextafter(error, 0)))
    assert done.code == 1
    assert "above the bound" in done.err


def test_float64_is_judged_beyond_float64(tersor) -> None:
    # the difference is 2**-60 too large, which float64 rounds away
    _pair(np.array([1.0]), np.array([-(2.0**-60)]))
    done = tersor("verify", "a.npy", "b.npy", "--abs", "1.0")
    assert done.code == (1 if np.finfo(np.longdouble).nmant > 52 else 0)


@pytest.mark.parametrize(
    ("original", "decoded"),
    [
        ([1, np.nan], [1, 2]),
        ([1, 2], [1, np.nan]),
        ([1, np.inf], [1, -np.inf]),
        ([1, np.inf], [1, 3e38]),
        ([1, 2], [np.inf, 2]),
        ([1, np.nan], [1, np.inf]),
    ],
)
def test_special_values_that_changed_are_found(tersor, original, decoded) -> None:
    _pair(np.array(original, np.float32), np.array(decoded, np.float32))
    done = tersor("verify", "a.npy", "b.npy", "--abs", "1e38", "--json")
    assert done.code == 1
    assert done.json["arrays"][0]["num_nonfinite_mismatches"] == 1
    assert done.json["holds"] is False


@pytest.mark.parametrize("decoded", [np.zeros((3, 4), np.float32), np.zeros(12, np.int32)])
def test_another_shape_or_kind_of_dtype_is_found(tersor, decoded) -> None:
    _pair(np.zeros(12, np.float32), decoded)
    assert tersor("verify", "a.npy", "b.npy", "--abs", "1").code == 1


def test_integers_must_be_equal(tersor) -> None:
    large = np.array([2**63 - 1, 5])
    _pair(large, large - 1)
    assert tersor("verify", "a.npy", "b.npy", "--abs", "10").code == 1
    _pair(large, large)
    tersor.ok("verify", "a.npy", "b.npy", "--abs", "10")


def test_the_recorded_bound_is_judged(tersor, noise) -> None:
    np.save("a.npy", noise)
    tersor.ok("compress", "a.npy", "--rel", "0.01", "--chunk-values", "999", "-o", "a.tsr")
    array = tersor.ok("verify", "a.npy", "a.tsr", "--json").json["arrays"][0]
    bound = Bound.relative(0.01).resolve(float(noise.min()), float(noise.max()))
    assert array["error_bound"] == bound
    assert 0 < array["max_error"] <= bound
    assert array["ratio"] > 2
    # the same file does not hold for another original, or for a bound that was not promised
    noise[299, 39] += 2 * bound
    np.save("other.npy", noise)
    assert tersor("verify", "other.npy", "a.tsr").code == 1
    assert tersor("verify", "a.npy", "a.tsr", "--rel", "0.001").code == 1


def test_every_array_is_matched_by_name(tersor, noise) -> None:
    np.savez("a.npz", w=noise, v=noise * 2)
    np.savez("b.npz", v=noise * 2, w=noise)
    tersor.ok("verify", "a.npz", "b.npz", "--abs", "0")
    np.savez("b.npz", v=noise * 2)
    done = tersor("verify", "a.npz", "b.npz", "--abs", "0")
    assert done.code == 1
    assert "'w'" in done.err


def test_a_codec_without_a_bound_is_measured_but_not_judged(tersor, noise) -> None:
    np.save("a.npy", noise)
    tersor.ok("compress", "a.npy", "--codec", "half")
    array = tersor.ok("verify", "a.npy", "a.npy.tsr", "--json").json["arrays"][0]
    assert array["holds"] is None
    assert array["max_error"] > 0
    assert tersor("verify", "a.npy", "a.npy.tsr", "--abs", "1e-9").code == 1


def test_exact_storage_must_be_exact(tersor, noise) -> None:
    np.save("a.npy", noise + np.float32(1e-5))
    with Writer("a.tsr") as writer:
        writer.add("a", torch.from_numpy(noise), create("raw"))
    assert tersor("verify", "a.npy", "a.tsr").code == 1


def test_psnr_is_that_of_its_definition(tersor, noise) -> None:
    decoded = noise + np.float32(0.01) * np.sign(noise)
    _pair(noise, decoded)
    array = tersor.ok("verify", "a.npy", "b.npy", "--abs", "1", "--json").json["arrays"][0]
    mean_squared = np.mean((decoded.astype(np.float64) - noise) ** 2)
    expected = 20 * np.log10(float(noise.max()) - float(noise.min())) - 10 * np.log10(mean_squared)
    # both sum 12000 doubles: far closer than a millionth of a decibel
    assert math.isclose(array["psnr_db"], expected, abs_tol=1e-6)


def test_raw_files_on_either_side_are_described_once(tersor, noise) -> None:
    Path("a.f32").write_bytes(noise.tobytes())
    described = ("--dtype", "f32", "--shape", "300,40")
    tersor.ok("compress", "a.f32", "--rel", "0.01", *described)
    tersor.ok("verify", "a.f32", "a.f32.tsr", *described)
    tersor.ok("decompress", "a.f32.tsr", "--raw", "-o", "b.f32")
    tersor.ok("verify", "a.f32", "b.f32", "--rel", "0.01", *described)


@pytest.mark.parametrize("suffix", ["npy", "tsr"])
def test_the_decoded_side_may_be_standard_input(tersor, noise, monkeypatch, suffix) -> None:
    np.save("a.npy", noise)
    tersor.ok("compress", "a.npy", "--rel", "0.01", "-o", "b.tsr")
    tersor.ok("decompress", "b.tsr")
    stream = io.BytesIO(Path(f"b.{suffix}").read_bytes())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
    tersor.ok("verify", "a.npy", "-", "--rel", "0.01")


def test_a_file_alone_is_decoded_as_a_whole(tersor, noise) -> None:
    np.save("a.npy", noise)
    tersor.ok("compress", "a.npy", "--rel", "0.01", "--chunk-values", "1000")
    assert tersor.ok("verify", "a.npy.tsr", "--json").json["num_chunks"] == 12
    data = bytearray(Path("a.npy.tsr").read_bytes())
    for position in range(16, len(data), 997):
        data[position] ^= 4
        Path("a.npy.tsr").write_bytes(data)
        tersor.refused("verify", "a.npy.tsr", code=1)
        data[position] ^= 4


def test_an_error_beyond_float64_is_reported(tersor) -> None:
    largest = np.finfo(np.float64).max
    _pair(np.array([largest, 0]), np.array([-largest, 0]))
    done = tersor("verify", "a.npy", "b.npy", "--abs", repr(float(largest)), "--json")
    assert done.code == 1
    assert done.json["arrays"][0]["max_error"] is None


def test_values_spanning_all_of_float64_are_compared() -> None:
    largest = torch.finfo(torch.float64).max
    found = Comparison()
    found.add(torch.tensor([largest, -largest], dtype=torch.float64), torch.zeros(2).double())
    assert found.holds(largest)
    assert not found.holds(math.nextafter(largest, 0))
    assert found.psnr_db is not None


def test_views_that_torch_keeps_lazily_are_compared_as_they_read(tersor) -> None:
    state = {
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "imaginary": torch.randn(5, dtype=torch.complex64).conj().imag,
        "strided": torch.randn(4, 6, dtype=torch.complex128).t().conj(),
    }
    assert state["imaginary"].is_neg()
    torch.save(state, "m.pt")
    tersor.ok("compress", "m.pt", "--rel", "1e-3")
    for array in tersor.ok("verify", "m.pt", "m.pt.tsr", "--json").json["arrays"]:
        assert array["holds"]
    tersor.ok("decompress", "m.pt.tsr", "-o", "back.pt")
    tersor.ok("verify", "back.pt", "m.pt", "--rel", "1e-3")
