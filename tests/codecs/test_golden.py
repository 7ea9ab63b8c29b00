"""Files of format version 1, kept in ``golden/v1``: they decode to the same bits forever.

``pytest tests/codecs/test_golden.py --write-golden`` writes them anew, which is only right before
the version is released, or for codecs and options that had none. Review the difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from tersor import Bound, dumps, loads, use_backend
from tersor.codecs import from_config
from tests.checks import assert_bits_equal, assert_within_bound
from tests.codecs.variants import BOUNDED, PAYLOADS, build

HERE = Path(__file__).parent / "golden" / "v1"
DTYPES = {
    "f32": torch.float32,
    "f64": torch.float64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
}
WHOLE = 2**30
ORDINARY = Bound.absolute(2.0**-7)
LIBRARIES = ("lz4", "sz3", "zfp", "zstd")
EARLIER = {
    "rows-index",
    *(f"{name}-f16" for name in ("flat", "delta-3-64", "huffman", "rows")),
    *(f"{name}-bf16" for name in ("flat", "delta-3-64", "huffman", "rows")),
}
"""Written when a step of float16 and bfloat16 had the 24 bits of float32, and most levels were rounded. The
step is a writer's choice: such files are decoded forever, and no longer written."""


@dataclass(frozen=True)
class Golden:
    """One file: which input, written by which codec."""

    source: str
    variant: str
    bound: Bound = ORDINARY
    chunk_values: int = WHOLE

    def encode(self) -> bytes:
        return dumps(
            build(self.variant, self.bound).pack(self.input(), chunk_values=self.chunk_values)
        )

    def input(self) -> torch.Tensor:
        return load(f"input-{self.source}")


def _cases() -> dict[str, Golden]:
    found = {f"{name}-f32": Golden("f32", name) for name in PAYLOADS}
    for name in ("flat", "delta-3-64", "huffman", "ans", "rows", "group4", "fp8", "raw"):
        for source in ("f64", "f16", "bf16"):
            found[f"{name}-{source}"] = Golden(source, name)
    for name in ("huffman", "ans", "rows"):
        found[f"{name}-wide"] = Golden("wide", name, Bound.absolute(2.0**-6))
    found["flat-scalar"] = Golden("scalar", "flat")
    found["flat-exact"] = Golden("f32", "flat", Bound.absolute(0.0))
    found["flat-constant"] = Golden("constant", "flat", Bound.relative(0.1))
    found["rows-empty"] = Golden("empty", "rows")
    found["raw-i64"] = Golden("i64", "raw")
    found["lossless-constant"] = Golden("constant", "lossless")
    found["flat-chunks"] = Golden("f32", "flat", chunk_values=130)
    found["huffman-coarse"] = Golden("f32", "huffman", Bound.absolute(0.25))
    found["ans-coarse"] = Golden("f32", "ans", Bound.absolute(0.25))
    found["flat-fine"] = Golden("f64", "flat", Bound.absolute(1e-8))
    found["ans-static-f32"] = Golden("f32", "ans-static", Bound.absolute(0.25))
    found["rows-index"] = Golden("lookups", "rows")
    found["rows-relative"] = Golden("wide", "rows", Bound.relative(1e-2))
    found["rows-index-levels"] = Golden("lookups", "rows")
    found["flat-bf16-levels"] = Golden("bf16", "flat")
    for source in ("f16", "bf16"):
        found[f"flat-{source}-relative"] = Golden(source, "flat", Bound.relative(3e-3))
    return found


CASES = _cases()
SOURCES = (*DTYPES, "wide", "lookups", "scalar", "constant", "empty", "i64")


def _inputs() -> dict[str, torch.Tensor]:
    """Repeated rows, a smooth part, noise and special values, from whole-number arithmetic only."""
    noise = (np.arange(20 * 24, dtype=np.uint64) * np.uint64(2654435761) >> np.uint64(7)) % 2048
    x = (noise.astype(np.float64) / 1024 - 1).reshape(20, 24)
    x[4:12] = np.arange(8)[:, None] * 0.125 + np.arange(24) * 0.03125
    x[[13, 15, 19]] = x[[12, 14, 12]]
    x[16, 3], x[16, 4], x[17, 0], x[18, 23] = np.nan, np.inf, -np.inf, 200.0
    x[18, 0], x[18, 1] = -0.0, 2.0**-24
    wide = torch.from_numpy(x)
    inputs = {name: wide.to(dtype) for name, dtype in DTYPES.items()}
    inputs["f64"] = inputs["f64"] / 3
    bell = np.array([int(k).bit_count() for k in range(2400)]) - 6.0
    return inputs | {
        "lookups": inputs["f16"][[number.bit_count() for number in range(500)], :4].contiguous(),
        "wide": torch.from_numpy(
            (bell * (np.arange(2400) % 91) / 16).astype(np.float32).reshape(300, 8)
        ),
        "scalar": torch.tensor(-1.75),
        "constant": torch.full((3, 50), 0.3),
        "empty": torch.zeros(0, 5),
        "i64": torch.arange(-3, 60) ** 5,
    }


def path_of(name: str, suffix: str) -> Path:
    return HERE / f"{name}.{suffix}"


def load(name: str) -> torch.Tensor:
    """Return the values of a ``.npy`` file; bfloat16 is kept as uint16."""
    values = torch.from_numpy(np.load(path_of(name, "npy"), allow_pickle=False))
    return values.view(torch.bfloat16) if values.dtype == torch.uint16 else values


def store(name: str, x: torch.Tensor) -> None:
    values = x.view(torch.uint16) if x.dtype == torch.bfloat16 else x
    np.save(path_of(name, "npy"), values.numpy(), allow_pickle=False)


@pytest.fixture(scope="module", autouse=True)
def _written_on_request(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--write-golden"):
        return
    # files that exist are promises: whoever changes one deletes it first
    for name, x in _inputs().items():
        if not path_of(f"input-{name}", "npy").exists():
            store(f"input-{name}", x)
    for name, golden in CASES.items():
        if path_of(name, "tsr").exists():
            continue
        data = golden.encode()
        path_of(name, "tsr").write_bytes(data)
        packed = loads(data)
        store(name, packed.codec.unpack(packed))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_golden_files_decode_to_the_same_bits(name, backend):
    packed = loads(path_of(name, "tsr").read_bytes())
    with use_backend(backend):
        assert_bits_equal(load(name), packed.codec.unpack(packed))


@pytest.mark.parametrize("name", CASES)
def test_golden_files_hold_what_they_promise(name):
    golden = CASES[name]
    packed = loads(path_of(name, "tsr").read_bytes())
    assert packed.codec == build(golden.variant, golden.bound)
    assert packed.codec == from_config(packed.codec.to_config())
    if golden.variant in BOUNDED:
        assert_within_bound(golden.input(), load(name), packed.error_bound)


# the libraries' own encoders change from version to version; their decoders do not
@pytest.mark.parametrize(
    "name", [n for n in CASES if not n.startswith(LIBRARIES) and n not in EARLIER]
)
def test_the_same_input_is_still_written_as_the_same_bytes(name):
    assert CASES[name].encode() == path_of(name, "tsr").read_bytes()


def test_inputs_are_those_the_files_were_made_of():
    for name, x in _inputs().items():
        assert_bits_equal(x, load(f"input-{name}"))


def test_there_is_a_file_for_every_case_and_no_other():
    expected = {path_of(name, suffix) for name in CASES for suffix in ("tsr", "npy")}
    expected |= {path_of(f"input-{name}", "npy") for name in SOURCES}
    assert set(HERE.iterdir()) == expected
    assert set(PAYLOADS) == {golden.variant for golden in CASES.values()}
    # a hundred files of some hundred values each; more would burden every clone
    assert sum(path.stat().st_size for path in expected) < 330_000


def test_a_changed_golden_is_noticed():
    golden = load("flat-f32")
    golden[0, 0] = golden[0, 0].nextafter(torch.tensor(9.0))
    packed = loads(path_of("flat-f32", "tsr").read_bytes())
    with pytest.raises(AssertionError, match="bytes differ"):
        assert_bits_equal(golden, packed.codec.unpack(packed))
