"""A reader written from docs/format.md alone decodes what tersor writes, bit for bit."""

from __future__ import annotations

import io
import json
import random
import re
import struct
from pathlib import Path

import pytest
import torch

from tersor.codecs import codec_ids, create
from tersor.container import Reader, Writer
from tersor.errors import CorruptDataError
from tersor.types import DTYPES, FLOAT_DTYPES, Bound
from tests import data
from tests.checks import assert_bits_equal
from tests.container.stranger import Chunk, read_container
from tests.container.stranger_payloads import decode_array, decode_chunk
from tests.one_by_one import decode_one

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
COARSE, FINE = Bound.relative(1e-2), Bound.relative(1e-4)
NARROW_TABLE = [256] * 12 + [64] * 12 + [32] * 8
WIDE_TABLE = [32] * 223 + [64] * 144 + [32]

FIXED = {
    "half": create("half"),
    "bf16": create("bf16"),
    "fp8": create("fp8"),
    "fp8-e5m2": create("fp8", format="e5m2", group=100),
    "group8": create("group8"),
    "group8-hadamard": create("group8", group=64, hadamard=True),
    "group4": create("group4", group=6),
    "group2": create("group2", group=12),
    "group2-seed": create("group2", seed=7),
    "mask4": create("mask4"),
    "mask2": create("mask2"),
    "group4-hadamard-seed": create("group4", hadamard=True, seed=2**64 - 1),
}
BOUNDED = {
    "flat": create("flat", bound=COARSE),
    "flat-64": create("flat", bound=FINE, block=64),
    "flat-base": create("flat", bound=FINE, base=True),
    "flat-base-64-lorenzo": create("flat", bound=COARSE, base=True, block=64, lorenzo=2),
    "flat-absolute": create("flat", bound=Bound.absolute(0.1)),
    "flat-exact": create("flat", bound=Bound.absolute(0)),
    "delta-1": create("delta", bound=FINE),
    "delta-2-64": create("delta", bound=COARSE, lorenzo=2, block=64),
    "delta-3": create("delta", bound=FINE, lorenzo=3),
    "huffman": create("huffman", bound=COARSE),
    "huffman-fine": create("huffman", bound=FINE),
    "huffman-absolute": create("huffman", bound=Bound.absolute(10)),
    "huffman-lorenzo-2": create("huffman", bound=FINE, lorenzo=2),
    "ans": create("ans", bound=COARSE),
    "ans-fine": create("ans", bound=FINE),
    "ans-absolute": create("ans", bound=Bound.absolute(10)),
    "ans-lorenzo-3": create("ans", bound=COARSE, lorenzo=3),
    "ans-static": create("ans", bound=COARSE, frequencies=NARROW_TABLE),
    "ans-static-wide": create("ans", bound=FINE, lorenzo=1, frequencies=WIDE_TABLE),
    "lz4": create("lz4", bound=COARSE, acceleration=4),
    "lz4-lorenzo-1": create("lz4", bound=FINE, lorenzo=1),
    "zstd": create("zstd", bound=FINE, level=-3),
    "zstd-lorenzo-3": create("zstd", bound=COARSE, lorenzo=3, level=9),
    "rows": create("rows", bound=COARSE),
    "rows-fine": create("rows", bound=FINE),
    "rows-ans": create("rows", bound=COARSE, entropy="ans"),
    "sz3": create("sz3", bound=FINE),
    "sz3-nopred": create("sz3", bound=COARSE, algorithm="nopred"),
    "zfp": create("zfp", bound=COARSE),
}
SCALED = {
    "rms": create("rms"),
    "rms-zeros": create("rms", zeros=True, step=0.4),
    "rms-nearest": create("rms", zeros=False, step=0.13),
    "lossless": create("lossless"),
}
INPUTS = (
    "empty_2d",
    "scalar",
    "one_nan",
    "odd_size",
    "block_plus_one",
    "constant",
    "smooth_1d",
    "smooth_2d",
    "smooth_3d",
    "smooth_4d",
    "embedding_rows",
    "huge",
    "subnormal",
    "nan_and_inf",
    "strided",
    "expanded",
    "far_from_zero",
    "wide_range",
    "large_codes",
)


def special_inputs(dtype):
    """Return what the shared inputs do not reach."""
    generator = torch.Generator().manual_seed(7)
    few_rows = torch.randn(3, 5, generator=generator)
    picks = torch.randint(0, 3, (700,), generator=generator)
    skewed = torch.where(torch.rand(700, generator=generator) < 0.98, 0, picks)
    holes = torch.full((50, 40), 0.3)
    holes[3, 7] = float("nan")
    repeated = few_rows[skewed]
    repeated[::2, 1] = float("inf")
    peaks = torch.randn(60, 50, generator=generator)
    peaks[::9, 3] = 1e4
    return {
        "few_rows_evenly": few_rows[picks].to(dtype),
        "few_rows_skewed": few_rows[skewed].to(dtype),
        "rows_with_infinity": repeated.to(dtype),
        "constant_with_nan": holes.to(dtype),
        "peaks": peaks.to(dtype),
        "two_levels": torch.randint(0, 2, (5, 99), generator=generator).to(dtype),
    }


def written(arrays, codec, **options) -> bytes:
    stream = io.BytesIO()
    with Writer(stream) as writer:
        for name, x in arrays.items():
            writer.add(name, x, codec, **options)
    return stream.getvalue()


def both(file: bytes):
    """Yield every array of a file as tersor and as the stranger decode it."""
    arrays = read_container(file)
    with Reader(io.BytesIO(file)) as reader:
        assert list(arrays) == reader.names
        for name, array in arrays.items():
            expected = reader.read(name)
            octets = torch.from_numpy(decode_array(array).copy())
            assert octets.shape == (*expected.shape, expected.itemsize)
            found = torch.empty_like(expected)
            if found.numel():
                found.view(-1).view(torch.uint8).copy_(octets.view(-1))
            yield expected, found


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("variant", [*BOUNDED, *SCALED])
def test_a_stranger_decodes_bounded_codecs_to_the_same_bits(variant, dtype):
    arrays = {name: data.make(name, dtype) for name in INPUTS} | special_inputs(dtype)
    for expected, found in both(written(arrays, (BOUNDED | SCALED)[variant])):
        assert_bits_equal(expected, found)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("variant", FIXED)
def test_a_stranger_decodes_fixed_codecs_to_the_same_bits(variant, dtype):
    arrays = {name: data.make(name, dtype) for name in INPUTS}
    for expected, found in both(written(arrays, FIXED[variant])):
        assert torch.equal(expected.isnan(), found.isnan())
        assert_bits_equal(expected.nan_to_num(7.0, 8.0, 9.0), found.nan_to_num(7.0, 8.0, 9.0))


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("codec_id", ["raw", "lossless"])
def test_a_stranger_decodes_exact_codecs_in_every_dtype(name, codec_id):
    octets = torch.arange(24, dtype=torch.uint8) % (2 if name == "bool" else 24)
    x = octets.repeat(2).view(DTYPES[name]).reshape(3, -1)
    ((expected, found),) = both(written({"x": x}, create(codec_id)))
    assert_bits_equal(expected, found)


@pytest.mark.parametrize("chunk_values", [1, 17, 19 * 17 * 4, 1000])
@pytest.mark.parametrize(
    "variant", ["flat-base", "delta-3", "huffman-lorenzo-2", "rows", "zstd", "sz3", "zfp"]
)
def test_a_stranger_decodes_every_chunk_alone(variant, chunk_values):
    x = data.make("smooth_3d", torch.float32)[:: 5 if chunk_values == 1 else 1]
    file = written({"x": x}, BOUNDED[variant], chunk_values=chunk_values)
    ((expected, found),) = both(file)
    assert_bits_equal(expected, found)


LARGE = {
    "huffman segments": ("huffman", {}, 2 * 32768 + 5),
    "huffman segments, wide": ("huffman", {"lorenzo": 1}, 32768 + 1),
    "rans blocks of 8192": ("ans", {}, 2**19),
    "rans blocks of 4096": ("ans", {}, 2**17 - 1),
    "lz4 frames": ("lz4", {}, 2**20 + 3),
    "zstd frames": ("zstd", {}, 2**20 + 3),
}


@pytest.mark.parametrize("case", LARGE)
def test_a_stranger_decodes_bodies_of_several_parts(case, generator):
    codec_id, options, count = LARGE[case]
    peak = 300 if "wide" in case else 3
    x = torch.randint(0, peak, (count,), generator=generator).float()
    file = written({"x": x}, create(codec_id, bound=Bound.absolute(0.4), **options))
    assert [chunk.payload[0] for chunk in read_container(file)["x"].chunks] == [1]
    ((expected, found),) = both(file)
    assert_bits_equal(expected, found)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2**21 - 1, 2**21, 2**23 - 1, 2**23])
def test_a_stranger_decodes_rans_blocks_of_every_size(count, generator):
    x = torch.randint(0, 3, (count,), generator=generator).float()
    file = written({"x": x}, create("ans", bound=Bound.absolute(0.4)), chunk_values=2**23)
    assert [chunk.payload[0] for chunk in read_container(file)["x"].chunks] == [1]
    ((expected, found),) = both(file)
    assert_bits_equal(expected, found)


def test_a_stranger_decodes_an_index_of_many_distinct_rows(generator):
    table = torch.randn(3000, 2, generator=generator)
    weights = 1 / torch.arange(1.0, 3001) ** 1.3
    picks = torch.multinomial(weights, 20000, replacement=True, generator=generator)
    rows = torch.cat([table, table[picks]])
    for entropy in ("huffman", "ans"):
        file = written({"x": rows}, create("rows", bound=Bound.relative(1e-4), entropy=entropy))
        index_mode, low_nbits = read_container(file)["x"].chunks[0].payload[28:30]
        assert (index_mode, low_nbits) == (1, 1)
        ((expected, found),) = both(file)
        assert_bits_equal(expected, found)


def test_a_stranger_ignores_zeros_that_fill_up_a_payload():
    x = torch.zeros(27 * 65536, dtype=torch.float16)
    file = written({"x": x}, BOUNDED["flat-exact"])
    assert len(read_container(file)["x"].chunks[0].payload) == 27
    ((expected, found),) = both(file)
    assert_bits_equal(expected, found)


def test_the_inputs_reach_every_kind_of_payload():
    arrays = {name: data.make(name, torch.float32) for name in INPUTS}
    arrays |= special_inputs(torch.float32)
    seen = set()
    for codec in BOUNDED.values():
        for array in read_container(written(arrays, codec)).values():
            seen |= kinds_of(array.chunks[0].payload, codec.codec_id)
    modes = {"mode 0", "mode 1", "mode 2", "outliers in mode 1", "outliers in mode 2"}
    coders = {
        f"{codec_id} {what}"
        for codec_id in ("huffman", "ans")
        for what in ("single", "narrow", "wide", "narrow with escapes", "wide with escapes")
    }
    rows = {f"rows {kind}" for kind in ("index 0", "index 1", "outliers")}
    planes = {f"{codec_id} {size} bytes" for codec_id in ("lz4", "zstd") for size in (1, 2)}
    assert seen == modes | coders | rows | planes


def kinds_of(payload: bytes, codec_id: str) -> set[str]:
    """Return what a payload exercises, read from fixed places of its headers."""

    def number(offset: int, nbytes: int) -> int:
        return int.from_bytes(payload[offset : offset + nbytes], "little")

    mode, num_outliers = payload[0], number(4, 4)
    kinds = {f"mode {mode}"} | ({f"outliers in mode {mode}"} if num_outliers else set())
    if mode != 1:
        return kinds
    if codec_id in ("huffman", "ans"):
        size = {1: "single"}.get(number(28, 2), "narrow" if number(28, 2) <= 256 else "wide")
        return kinds | {f"{codec_id} {size}" + (" with escapes" if number(32, 4) else "")}
    if codec_id in ("lz4", "zstd"):
        return kinds | {f"{codec_id} {payload[28]} bytes"}
    if codec_id == "rows":
        kinds |= {f"rows index {payload[28]}"} | ({"rows outliers"} if num_outliers else set())
    return kinds


def test_the_page_lists_every_codec_with_its_options_and_defaults():
    section = PAGE.split("### Codecs")[1].split("###")[0]
    listed = {}
    for row in re.findall(r"^\| (`.*) \|$", section, re.MULTILINE):
        names, _, decoding, other = row.split("|")
        options = {
            name: json.loads(default)
            for name, default in re.findall(r"`(\w+)` [^()`]+\(([^)]+)\)", decoding + other)
        }
        if "`bound`" in other:
            options["bound"] = COARSE.to_config()
        listed |= dict.fromkeys(re.findall(r"`(\w+)`", names), options)
    assert set(listed) == set(codec_ids()) - {"auto"}
    for codec_id, options in listed.items():
        given = {"bound": COARSE} if "bound" in options else {}
        assert {"id": codec_id, "version": 1, **options} == create(codec_id, **given).to_config()


@pytest.mark.parametrize(
    ("codec_id", "values"),
    [("flat", [0, 1, -1, 2, float("nan"), -2, *[0] * 26]), ("huffman", [0, 0, 1, -1] * 8)],
)
def test_the_payloads_on_the_page_are_what_tersor_writes(codec_id, values):
    table = PAGE.split("### Examples of payloads")[1].split(f"\n`{codec_id}`, ")[1].split("\n\n")[1]
    shown = bytes.fromhex(" ".join(re.findall(r"^\| `([0-9a-f ]+)` \|", table, re.MULTILINE)))
    codec = create(codec_id, bound=Bound.absolute(0.5))
    (payload,) = codec.pack(torch.tensor(values, dtype=torch.float32)).payloads
    assert bytes(payload.tolist()) == shown


DAMAGED = (
    "flat-base",
    "delta-2-64",
    "huffman-fine",
    "ans",
    "ans-static-wide",
    "lz4",
    "rows-ans",
    "sz3",
    "zfp",
)


def outcomes(codec, shape, payload: bytes) -> tuple[bytes | None, bytes | None]:
    """Return the f32 values of a payload by tersor and by the stranger, None where refused."""
    out = torch.empty(shape)
    try:
        decode_one(codec, torch.tensor(list(payload), dtype=torch.uint8), out)
        decoded = out.numpy().tobytes()
    except CorruptDataError:
        decoded = None
    config = json.loads(json.dumps(codec.to_config()))
    try:
        return decoded, decode_chunk(Chunk(0, out.numel(), list(shape), payload), "f32", config)
    except ValueError:
        return decoded, None


@pytest.mark.parametrize("variant", DAMAGED)
def test_a_stranger_and_tersor_refuse_the_same_damage(variant):
    codec, choice = BOUNDED[variant], random.Random(variant)
    inputs = special_inputs(torch.float32) | {"large": data.make("large_codes", torch.float32)}
    refused = 0
    for name in ("rows_with_infinity", "peaks", "large"):
        x = inputs[name][:60]
        (payload,) = codec.pack(x).payloads
        for _ in range(60):
            damaged = bytearray(payload.tolist())
            # mostly headers: damage further behind is often an ordinary other value
            limit = len(damaged) if choice.random() < 0.3 else min(len(damaged), 120)
            place = choice.choice([*range(8), *range(16, limit)])
            damaged[place] ^= 1 << choice.randrange(8)
            decoded, found = outcomes(codec, tuple(x.shape), bytes(damaged))
            assert decoded == found
            refused += decoded is None
    assert refused


def payload_of(mode: int, step: float, body: bytes) -> bytes:
    return struct.pack("<B3xIdQ", mode, 0, step, len(body)) + body


MALFORMED = {
    "a step beyond f32": ("flat", payload_of(1, 1e300, bytes(32))),
    "a step between two f32": ("flat", payload_of(1, 0.1, bytes(32))),
    "a step of zero": ("flat", payload_of(1, 0.0, bytes(32))),
    "a constant beyond f32": ("flat", payload_of(2, 1e300, b"")),
    "a constant between two f32": ("flat", payload_of(2, 0.1, b"")),
    "a constant with a body": ("flat", payload_of(2, 1.0, bytes(8))),
    "an exact body that is too long": ("flat", payload_of(0, 0.0, bytes(24))),
    "two symbols without streams": (
        "huffman",
        payload_of(1, 1.0, struct.pack("<iH10xB7x8x16x", 0, 2, 0x11)),
    ),
    "two lengths for a single symbol": (
        "huffman",
        payload_of(1, 1.0, struct.pack("<iH10xB7x8x16x", 0, 2, 0x02)),
    ),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_stranger_and_tersor_refuse_what_the_page_forbids(what):
    codec_id, payload = MALFORMED[what]
    assert outcomes(create(codec_id, bound=COARSE), (4,), payload) == (None, None)


def test_a_stranger_and_tersor_refuse_every_cut():
    x = special_inputs(torch.float32)["rows_with_infinity"][:60]
    for variant in DAMAGED:
        payload = bytes(BOUNDED[variant].pack(x).payloads[0].tolist())
        for nbytes in range(0, len(payload.rstrip(b"\0")), 7):
            assert outcomes(BOUNDED[variant], tuple(x.shape), payload[:nbytes]) == (None, None)
