"""Group codecs: the error they promise, and differences to a base encoded and added."""

from __future__ import annotations

import pytest
import torch

from tersor.codecs import create
from tersor.errors import CorruptDataError, SpecError
from tersor.kernels.group.reference import SMALLEST_ABSMAX
from tersor.kernels.transform.reference import hadamard as transformed
from tersor.types import FLOAT_DTYPES
from tests import data
from tests.one_by_one import decode_one

CODECS = [
    create("group4", group=128),
    create("group4", group=2048, seed=9),
    create("group8", group=64, hadamard=True),
    create("group4", group=10),
]


def promised_errors(codec, x):
    """Return what ``GroupCodec`` documents as the largest error of each value of the flat ``x``."""
    groups = torch.zeros(-(-x.numel() // codec.group) * codec.group)
    groups[: x.numel()] = x.float().nan_to_num(0.0, 0.0, 0.0)
    if codec.hadamard:
        groups = transformed(groups)
    largest = groups.view(-1, codec.group).double().abs().amax(1, keepdim=True)
    largest = largest.expand(-1, codec.group).reshape(-1)[: x.numel()]
    levels = 0.5 if codec.seed is None else 1.0
    roundings = 2.0**-18 if codec.hadamard else 2.0**-20
    error = largest * (levels / (2 ** (codec.nbits - 1) - 1) + roundings)
    error = torch.where(largest < SMALLEST_ABSMAX, x.double().abs(), error)
    return 2 * error if x.dtype.itemsize == 2 else error


def adverse(dtype):
    """Yield inputs whose levels lie at every distance from the values of ``dtype``."""
    for name in ("noise", "gradients", "huge", "subnormal", "wide_range", "odd_size", "zeros"):
        yield name, data.make(name, dtype).reshape(-1)
    generator = torch.Generator().manual_seed(3)
    for factor in torch.linspace(1, 2, 24).tolist():
        yield f"{factor}", (factor * torch.randn(4096, generator=generator)).to(dtype)
    spacing = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    for largest in (5, 60, 80, 100, 200, 250):
        steps = torch.randint(-largest, largest + 1, (4096,), generator=generator)
        yield f"{largest} smallest values", (steps.double() * spacing).to(dtype)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("hadamard", [False, True], ids=["plain", "hadamard"])
@pytest.mark.parametrize("seed", [None, 7], ids=["nearest", "stochastic"])
@pytest.mark.parametrize("codec_id", ["group8", "group4"])
def test_the_error_is_what_the_docstring_says(codec_id, seed, hadamard, dtype):
    codec = create(codec_id, group=64, seed=seed, hadamard=hadamard)
    for name, x in adverse(dtype):
        if name == "huge" and hadamard:
            continue  # sums of 32 such values have no float32
        promised = promised_errors(codec, x)
        errors = (codec.unpack(codec.pack(x)).double() - x.double()).abs()
        # float64 beyond float32's range counts as not finite
        counts = x.float().isfinite()
        if hadamard:
            counts &= x.double().abs() + promised <= torch.finfo(dtype).max
        share = (errors / promised)[counts].nan_to_num(0.0).max() if counts.any() else 0.0
        assert bool((errors <= promised)[counts].all()), f"{name}: {share} of what is promised"


@pytest.mark.parametrize("nbits", [8, 4])
def test_rounding_to_bfloat16_adds_to_a_stochastic_level(nbits):
    """A promise of one level, whatever the dtype, would be broken."""
    codec = create(f"group{nbits}", group=64, seed=7)
    worst = 0.0
    for _, x in adverse(torch.bfloat16):
        errors = (codec.unpack(codec.pack(x)).double() - x.double()).abs()
        level = promised_errors(codec, x) / 2
        worst = max(worst, float((errors / level).nan_to_num(0.0).max()))
    assert 1.0 < worst < 2.0


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_a_base_changes_nothing_but_the_memory_needed(codec, dtype, generator):
    x = torch.randn(7, 301, generator=generator).to(dtype)
    base = (x + torch.randn(7, 301, generator=generator) * 0.01).to(dtype)
    before = base.clone()
    payload = codec.encode_difference(x, base)
    assert torch.equal(payload, codec.pack_chunk(x - base))
    assert torch.equal(base, before)
    wide = torch.empty(7, 301)
    decode_one(codec, payload, wide)
    expected = before.add_(wide)
    assert codec.decode_add(payload, base) is base
    assert torch.equal(base, expected)


def test_what_a_step_loses_the_next_one_carries():
    """Ranks that apply the same payloads agree, and lack no more than the last payload did."""
    generator = torch.Generator().manual_seed(5)
    codec = create("group4", group=64)
    weights = torch.randn(640, generator=generator)
    copies = [weights.clone(), weights.clone()]
    for _ in range(20):
        weights += torch.randn(640, generator=generator) * 0.01
        lacking = (weights - copies[0]).abs().max()
        payload = codec.encode_difference(weights, copies[0])
        for copy in copies:
            codec.decode_add(payload, copy)
        # half of one of seven levels, and far less for the roundings to float32
        assert (weights - copies[0]).abs().max() <= lacking / 13.9
    assert torch.equal(*copies)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_layouts_and_empty_tensors_are_taken(dtype):
    codec = create("group4", group=32)
    x, base = torch.arange(60.0).view(6, 10).to(dtype).T, torch.ones(10, 6, dtype=dtype)
    assert torch.equal(codec.encode_difference(x, base), codec.pack_chunk((x - 1).contiguous()))
    nothing = torch.zeros(0, 5, dtype=dtype)
    payload = codec.encode_difference(nothing, nothing)
    assert payload.numel() == 0
    assert codec.decode_add(payload, nothing).shape == (0, 5)


@pytest.mark.parametrize(
    "base",
    [torch.zeros(64, dtype=torch.float64), torch.zeros(63), torch.zeros(8, 8)],
    ids=["dtype", "size", "shape"],
)
def test_a_base_unlike_the_tensor_is_refused(base):
    with pytest.raises(SpecError, match="base must be"):
        create("group4").encode_difference(torch.zeros(64), base)


def test_what_cannot_be_written_in_place_is_refused():
    codec = create("group8", group=32)
    payload = codec.pack_chunk(torch.zeros(64))
    with pytest.raises(SpecError, match="contiguous"):
        codec.decode_add(payload, torch.zeros(8, 8).T)
    with pytest.raises(SpecError, match="gradient"):
        codec.decode_add(payload, torch.zeros(64, requires_grad=True))
    with pytest.raises(SpecError, match="cannot encode"):
        codec.decode_add(payload, torch.zeros(64, dtype=torch.int32))
    base = torch.ones(64)
    with pytest.raises(CorruptDataError, match="payload bytes expected"):
        codec.decode_add(payload[:-1], base)
    assert torch.equal(base, torch.ones(64))


@pytest.mark.parametrize("name", ["group8", "group4"])
def test_the_seed_of_a_call_does_what_a_seed_of_the_spec_does(name):
    x, base = torch.randn(500), torch.randn(500)
    plain, seeded = create(name), create(name, seed=7)
    assert torch.equal(plain.encode([x], seed=7).payloads()[0], seeded.pack_chunk(x))
    assert torch.equal(plain.encode_difference(x, base, seed=7), seeded.encode_difference(x, base))
    other = seeded.encode([x], seed=8).payloads()[0]
    assert torch.equal(other, create(name, seed=8).pack_chunk(x))
    with pytest.raises(SpecError, match="seed must be"):
        plain.encode([x], seed=-1)


@pytest.mark.parametrize("name", ["raw", "half", "bf16", "fp8", "group8", "group4"])
def test_payloads_are_written_into_memory_of_the_caller(name):
    codec, xs = create(name), [torch.randn(size) for size in (33, 0, 70)]
    expected = [codec.pack_chunk(x) for x in xs]
    room = sum(-(-payload.numel() // 8) * 8 for payload in expected)
    memory = torch.full((room + 8,), 0xC3, dtype=torch.uint8)
    found = codec.encode(xs, out=memory)
    assert found.buffer.data_ptr() == memory.data_ptr()
    for one, other in zip(expected, found.payloads(), strict=True):
        assert torch.equal(one, other)
    assert bool((memory[room:] == 0xC3).all())


def test_a_difference_is_written_into_memory_of_the_caller():
    codec, x, base = create("group4"), torch.randn(300), torch.randn(300)
    memory = torch.zeros(256, dtype=torch.uint8)
    payload = codec.encode_difference(x, base, out=memory)
    assert payload.data_ptr() == memory.data_ptr()
    assert torch.equal(payload, codec.encode_difference(x, base))


@pytest.mark.parametrize(
    "memory",
    [
        torch.zeros(100, dtype=torch.uint8),
        torch.zeros(1000),
        torch.zeros(2000, dtype=torch.uint8)[::2],
        torch.zeros(1001, dtype=torch.uint8)[1:],
    ],
    ids=["too small", "dtype", "strided", "not aligned"],
)
def test_memory_that_cannot_be_written_to_is_refused(memory):
    codec, x = create("group8"), torch.randn(300)
    with pytest.raises(SpecError, match="out must"):
        codec.encode([x], out=memory)
    with pytest.raises(SpecError, match="out must"):
        codec.encode_difference(x, x, out=memory)
