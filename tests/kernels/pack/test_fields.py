"""Contiguous fields, and the two ways to squeeze bits out of machine words."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest
import torch

from tersor.errors import CorruptDataError
from tersor.kernels.pack.fields import pack_fields, unpack_fields
from tersor.kernels.runtime.cpu import intrinsics as machine
from tests.checks import assert_rejects
from tests.kernels.oracle import bits_of, number

GENERATOR_SEED = 5


def words(count: int) -> list[int]:
    generator = torch.Generator().manual_seed(GENERATOR_SEED)
    octets = torch.randint(0, 256, (count, 8), generator=generator).tolist()
    return [0, 2**64 - 1, *(int.from_bytes(bytes(word), "little") for word in octets)]


def squeezed(word: int, width: int, lane: int) -> int:
    """Take the low ``width`` bits of every lane, one bit at a time."""
    bits = [word >> place & 1 for place in range(64)]
    return number([bit for place, bit in enumerate(bits) if place % lane < width])


def spread(word: int, width: int, lane: int) -> int:
    """Put the low bits of the word into the low ``width`` bits of every lane, one at a time."""
    result, source = 0, 0
    for place in range(64):
        if place % lane < width:
            result |= (word >> source & 1) << place
            source += 1
    return result


@pytest.mark.parametrize("twin", ["bmi2", "portable"])
@pytest.mark.parametrize(("lanes", "lane"), [("bytes", 8), ("pairs", 16)])
def test_squeeze_and_spread_take_bits_one_by_one(twin, lanes, lane):
    if twin == "bmi2" and not machine.HAS_BMI2:
        pytest.skip("this processor has no BMI2")
    squeeze_twin = getattr(machine, f"squeeze_{lanes}_{twin}")
    spread_twin = getattr(machine, f"spread_{lanes}_{twin}")
    import numpy as np

    for width in range(lane + 1):
        for word in words(40):
            field = np.uint64(width)
            # squeezing is only ever asked of lanes that hold no higher bits
            clean = spread(word, width, lane)
            assert int(squeeze_twin(np.uint64(clean), field)) == squeezed(clean, width, lane)
            assert int(spread_twin(np.uint64(word), field)) == clean


@pytest.mark.parametrize("width", [0, 1, 3, 8, 17, 31])
def test_fields_lie_one_after_the_other(width):
    generator = torch.Generator().manual_seed(GENERATOR_SEED)
    for count in (0, 1, 7, 8, 9, 257):
        values = torch.randint(0, 2**width, (count,), generator=generator, dtype=torch.int32)
        packed = pack_fields(values, width)
        assert packed.numel() % 8 == 0
        assert packed.numel() * 8 - count * width < 64
        bits = bits_of(packed)
        fields = [number(bits[k * width : (k + 1) * width]) for k in range(count)]
        assert fields == values.tolist()
        assert not any(bits[count * width :])
        assert torch.equal(unpack_fields(packed, count, width), values)
        if packed.numel():
            short = packed[:-1]
            assert_rejects(
                lambda short=short, count=count: unpack_fields(short, count, width),
                CorruptDataError,
            )


_PORTABLE = """
import hashlib, sys, torch
import llvmlite.binding as llvm
if sys.argv[1] == "portable":
    features = llvm.get_host_cpu_features()
    features["bmi2"] = False
    llvm.get_host_cpu_features = lambda: features
from tersor.kernels.runtime.cpu import intrinsics as machine
if sys.argv[1] == "portable":
    assert not machine.HAS_BMI2
    assert machine.squeeze_bytes is machine.squeeze_bytes_portable
from tests.kernels.pack.test_fields import digest_of_packing
print(digest_of_packing())
"""


def digest_of_packing() -> str:
    """Pack and unpack codes of every width; return a digest of all bytes."""
    from tersor.kernels.pack.blocks.cpu import pack, unpack

    digest = hashlib.sha256()
    generator = torch.Generator().manual_seed(GENERATOR_SEED)
    for nbits in range(1, 33):
        low, high = -(2**nbits) // 2, 2**nbits // 2
        codes = torch.randint(low, high, (1500,), generator=generator).to(torch.int32)
        for block in (32, 64):
            body = pack(codes, block)
            assert torch.equal(unpack(body, codes.numel(), block)[0], codes)
            digest.update(body.numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.slow
def test_processors_without_bmi2_write_the_same_bytes(tmp_path):
    """Runs both in new processes, with a compilation cache of their own."""
    found = {}
    for twin in ("portable", "native"):
        env = {"NUMBA_CACHE_DIR": str(tmp_path / twin), "PYTHONPATH": ":".join(sys.path)}
        command = [sys.executable, "-c", _PORTABLE, twin]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found[twin] = done.stdout
    assert found["portable"] == found["native"]
