"""Every codec on every shared input, dtype and bound keeps what codecs promise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from tersor import Bound, Packed, codec_ids, compress, decompress, use_backend
from tersor.chunks import ChunkPlan
from tersor.errors import CorruptDataError, SpecError
from tersor.testing import check_codec
from tersor.testing.conformance import (
    BOUNDS,
    assert_promised,
    assert_size,
    decode_into_poison,
    encode_twice,
)
from tersor.types import FLOAT_DTYPES, TensorInfo
from tests import data
from tests.checks import (
    assert_bits_equal,
    assert_config_roundtrip,
    assert_rejects,
    assert_within_bound,
)
from tests.codecs.variants import AUTO, BOUNDED, FIXED, PAYLOADS, build

EXACT = ("raw", "lossless")
FEW_BOUNDS = (Bound.relative(1e-3), Bound.absolute(0.1))
DTYPES = pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=lambda t: str(t).removeprefix("torch."))


@contextmanager
def named(*what: object) -> Iterator[None]:
    """Say in a failure which of the looped cases it was."""
    try:
        yield
    except Exception as error:
        error.add_note(", ".join(map(str, what)))
        raise


def test_every_registered_codec_has_a_variant():
    built = {build(name, Bound.absolute(1.0)).codec_id for name in (*PAYLOADS, *AUTO)}
    assert built == set(codec_ids())


@pytest.mark.parametrize(
    "variant", ["raw", "fp8-e5m2-7", "group8-64-seed", "flat-base", "rows", "rms"]
)
def test_our_own_codecs_pass_the_check_for_plug_ins(variant):
    check_codec(build(variant, Bound.relative(1e-3)))


@DTYPES
@pytest.mark.parametrize("variant", [*BOUNDED, *AUTO])
def test_bound_holds(variant, dtype):
    bounds = FEW_BOUNDS if variant in AUTO else BOUNDS
    for name, x in data.inputs(dtype).items():
        for bound in bounds:
            with named(name, bound):
                codec = build(variant, bound)
                packed = encode_twice(codec, x) if bound in FEW_BOUNDS else codec.pack(x)
                assert_promised(codec, packed, x)
                assert_within_bound(x, decode_into_poison(packed), packed.error_bound)
                assert_size(codec, packed)


@DTYPES
@pytest.mark.parametrize("variant", FIXED)
def test_size_follows_from_the_shape(variant, dtype):
    codec = build(variant)
    assert codec.size_kind == "fixed"
    for name, x in data.inputs(dtype).items():
        with named(name):
            packed = encode_twice(codec, x)
            assert_size(codec, packed)
            decoded = decode_into_poison(packed)
            if variant == "raw":
                assert_bits_equal(x, decoded)
            elif variant in ("half", "bf16"):
                assert_bits_equal(x.to(codec.target).to(dtype).contiguous(), decoded)


@pytest.mark.parametrize("variant", [name for name in FIXED if name.startswith("fp8")])
def test_fp8_errs_by_a_part_of_the_largest_of_its_group(variant):
    codec = build(variant)
    for name in ("noise", "gradients", "huge", "odd_size", "grid"):
        x = data.make(name, torch.float32)
        decoded = codec.unpack(codec.pack(x)).double().view(-1)
        padding = torch.zeros(-x.numel() % codec.group, dtype=torch.float64)
        groups = torch.cat([x.double().view(-1), padding]).view(-1, codec.group)
        # float32 rounding of scale, code and value: at most 2**-20 of the largest
        allowed = groups.abs().amax(1, keepdim=True) * (2.0**-3 + 2.0**-20)
        allowed = allowed.expand_as(groups).reshape(-1)[: x.numel()]
        with named(name):
            assert bool(((decoded - x.double().view(-1)).abs() <= allowed).all())


@pytest.mark.parametrize("variant", [*PAYLOADS, *AUTO])
def test_config_goes_through_json(variant):
    for bound in (Bound.relative(1e-3), Bound.absolute(5e-324)):
        assert_config_roundtrip(build(variant, bound))


@pytest.mark.parametrize("variant", PAYLOADS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_reference_writes_and_reads_the_same_bytes(variant, dtype):
    names = ("smooth_3d", "embedding_rows", "nan_and_inf", "large_codes", "wide_range", "scalar")
    for name in names if dtype == torch.float32 else names[1:3]:
        x = data.make(name, dtype)
        codec = build(variant, Bound.relative(1e-3))
        with named(name):
            packed = codec.pack(x)
            decoded = codec.unpack(packed)
            with use_backend("reference"):
                (by_reference,) = codec.pack(x).payloads
                assert_bits_equal(by_reference, packed.payloads[0])
                assert_bits_equal(codec.unpack(packed), decoded)


@pytest.mark.parametrize("variant", PAYLOADS)
def test_out_may_have_any_strides(variant):
    for name in ("noise", "nan_and_inf", "scalar", "empty_2d"):
        x = data.make(name, torch.float32)
        codec = build(variant, Bound.absolute(0.1))
        packed = codec.pack(x)
        expected = codec.unpack(packed)
        room = torch.full((*x.shape, 3), 7.0)
        out = room[..., 1]
        with named(name):
            assert codec.unpack(packed, out) is out
            assert_bits_equal(out.contiguous(), expected)
            assert bool((room[..., ::2] == 7.0).all())
        if x.dim() == 2:
            transposed = torch.full(x.t().shape, torch.nan).t()
            assert_bits_equal(codec.unpack(packed, transposed).contiguous(), expected)


@pytest.mark.parametrize("variant", PAYLOADS)
def test_out_that_does_not_fit_is_refused(variant):
    codec = build(variant, Bound.absolute(0.1))
    packed = codec.pack(torch.zeros(4, 6))
    for out in (
        torch.zeros(24),
        torch.zeros(6, 4),
        torch.zeros(4, 7),
        torch.zeros(4, 6, dtype=torch.float64),
        torch.zeros(4, 6, device="meta"),
    ):
        error = assert_rejects(lambda out=out: codec.unpack(packed, out), SpecError)
        assert "(4, 6)" in str(error)


@pytest.mark.parametrize("variant", PAYLOADS)
def test_other_layouts_give_the_same_bytes(variant):
    x = data.make("noise", torch.float32)
    codec = build(variant, Bound.absolute(0.01))
    (expected,) = codec.pack(x).payloads
    strided = torch.zeros(64, 130)[:, 1:129:2]
    strided.copy_(x)
    for other in (x.t().contiguous().t(), strided, x.clone().requires_grad_()):
        (found,) = codec.pack(other).payloads
        assert_bits_equal(found, expected)


@pytest.mark.parametrize("variant", [*PAYLOADS, *AUTO])
@pytest.mark.parametrize("chunk_values", [1, 7, 1000, 1024])
def test_chunks_keep_the_promise(variant, chunk_values):
    name = "relu_activations" if chunk_values > 100 else "ties"
    x = data.make(name, torch.float32)
    if chunk_values > 100:
        x[0, 0, 0, 0], x[3, 7, 9, 11] = math.nan, -math.inf
    codec = build(variant, Bound.relative(1e-3))
    packed = codec.pack(x, chunk_values=chunk_values)
    plan = ChunkPlan(tuple(x.shape), chunk_values)
    assert len(packed.payloads) == len(plan) > 1
    decoded = decode_into_poison(packed)
    for chunk, payload in zip(plan, packed.payloads, strict=True):
        part = x.view(-1)[chunk.start : chunk.stop].view(chunk.shape)
        assert_bits_equal(payload, packed.codec.pack_chunk(part, packed.error_bound))
    if variant in EXACT:
        assert_bits_equal(decoded, x)
    if packed.error_bound is None:
        return
    assert_within_bound(x, decoded, packed.error_bound)
    assert packed.error_bound == codec.pack(x).error_bound


@pytest.mark.parametrize("variant", PAYLOADS)
def test_missing_and_extra_payloads_are_refused(variant):
    codec = build(variant, Bound.absolute(0.1))
    packed = codec.pack(torch.randn(10), chunk_values=4)
    for payloads in (packed.payloads[:2], (*packed.payloads, packed.payloads[0]), ()):
        wrong = Packed(packed.info, codec, payloads, 4)
        assert_rejects(lambda wrong=wrong: codec.unpack(wrong), CorruptDataError)


@pytest.mark.parametrize("variant", PAYLOADS)
def test_other_dtypes_are_refused_or_exact(variant):
    codec = build(variant, Bound.absolute(0.1))
    for dtype in (torch.int32, torch.bool, torch.complex64, torch.uint16, torch.float8_e5m2):
        x = torch.tensor([1, 0, 1]).to(dtype)
        if variant in EXACT:
            assert_bits_equal(codec.unpack(codec.pack(x)), x)
        else:
            assert_rejects(lambda x=x: codec.pack(x), SpecError)


@pytest.mark.parametrize(
    ("codec_id", "options"),
    [
        ("flat", {"block": 16}),
        ("flat", {"block": 32.0}),
        ("flat", {"base": "yes"}),
        ("delta", {"lorenzo": 4}),
        ("delta", {"lorenzo": 1.0}),
        ("delta", {"lorenzo": -1}),
        ("huffman", {"lorenzo": "1"}),
        ("ans", {"frequencies": (4096,)}),
        ("ans", {"frequencies": (4000, 95)}),
        ("ans", {"frequencies": (0, 4096)}),
        ("ans", {"frequencies": (2048.0, 2048)}),
        ("ans", {"frequencies": (1,) * 5000}),
        ("lz4", {"acceleration": 0}),
        ("zstd", {"level": 23}),
        ("zstd", {"level": 1.5}),
        ("rows", {"entropy": "lz4"}),
        ("sz3", {"algorithm": "fft"}),
        ("sz3", {"algorithm": ["interp"]}),
        ("zfp", {"rate": 8}),
        ("auto", {"bandwidth_gbit_s": 0}),
        ("auto", {"bandwidth_gbit_s": -1.0}),
        ("auto", {"bandwidth_gbit_s": math.nan}),
        ("auto", {"bandwidth_gbit_s": "fast"}),
        ("fp8", {"format": "e3m4"}),
        ("fp8", {"group": 0}),
        ("group8", {"group": 3}),
        ("group8", {"group": 0}),
        ("group4", {"group": 48, "hadamard": True}),
        ("group2", {"group": 6}),
        ("group2", {"seed": -1}),
        ("mask2", {"step": 1.0}),
        ("group4", {"seed": -1}),
        ("group4", {"seed": 2**64}),
        ("group4", {"hadamard": "no"}),
        ("rms", {"step": 0.125}),
        ("rms", {"step": 8.5}),
        ("rms", {"step": "1"}),
        ("rms", {"step": True}),
        ("rms", {"step": math.nan}),
        ("rms", {"zeros": 1}),
        ("rms", {"zeros": "never"}),
        ("rms", {"bound": Bound.absolute(0.1)}),
        ("raw", {"level": 1}),
    ],
    ids=str,
)
def test_impossible_options_are_refused(codec_id, options):
    from tersor import create

    bound = {"bound": Bound.absolute(0.1)} if codec_id in {**BOUNDED, **AUTO} else {}
    assert_rejects(lambda: create(codec_id, **bound, **options), SpecError)


@pytest.mark.parametrize("variant", [*BOUNDED, *AUTO])
def test_a_bound_of_another_type_is_refused(variant):
    for bound in (0.1, None, "0.1", {"absolute": 0.1}):
        assert_rejects(lambda bound=bound: build(variant, bound), SpecError)


@pytest.mark.parametrize("variant", ["flat", "raw", "auto"])
@pytest.mark.parametrize("chunk_values", [0, -1, 1.5, 2**40])
def test_impossible_chunk_sizes_are_refused(variant, chunk_values):
    codec = build(variant, Bound.absolute(0.1))
    assert_rejects(lambda: codec.pack(torch.randn(8), chunk_values=chunk_values), SpecError)


def test_a_payload_is_decoded_to_no_dtype_that_its_codec_does_not_take():
    packed = compress(torch.randn(100), Bound.relative(0.01), codec="flat")
    wrong = dataclasses.replace(packed, info=TensorInfo((100,), torch.int32))
    with pytest.raises(SpecError, match=r"'flat' cannot encode torch\.int32"):
        decompress(wrong)


@pytest.mark.parametrize("view", [torch._neg_view, torch.conj])
def test_a_view_that_changes_values_is_no_place_to_decode_into(view):
    dtype = torch.complex64 if view is torch.conj else torch.float32
    packed = compress(torch.ones(10, dtype=dtype), codec="raw")
    with pytest.raises(SpecError, match="resolve"):
        decompress(packed, out=view(torch.zeros(10, dtype=dtype)))
