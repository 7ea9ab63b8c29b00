"""Lists of tensors encoded in one launch have the payloads of codecs of a fixed size.

With ``TRITON_INTERPRET=1``, as is set without a GPU, the kernels run on CPU tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tersor.codecs.codec import Codec
from tersor.codecs.registry import create
from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.runtime.op import use_backend
from tersor.raw_bytes import padded
from tests.checks import assert_bits_equal
from tests.one_by_one import decode_one
from tests.triton_device import DEVICE, MARKS

pytest.importorskip("triton")

pytestmark = MARKS

GUARD = 0xC3
GUARD_NBYTES = 64
F32, F64, F16, BF16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
CASES = (
    ("half", {}, F32),
    ("half", {}, F64),
    ("half", {}, F16),
    ("half", {}, BF16),
    ("bf16", {}, F32),
    ("bf16", {}, BF16),
    ("fp8", {}, F32),
    ("fp8", {"format": "e5m2", "group": 7}, BF16),
    ("fp8", {"group": 2048}, F64),
    ("group8", {}, F32),
    ("group8", {"group": 32, "hadamard": True}, BF16),
    ("group8", {"group": 4096, "seed": 2**40 + 3}, F16),
    ("group4", {"hadamard": True}, F32),
    ("group4", {"group": 32, "seed": 5}, F64),
)

IDS = [f"{name} {options} {dtype}" for name, options, dtype in CASES]


def a_list(dtype: torch.dtype) -> list[Tensor]:
    """Return whole tiles, parts of one, nothing, and values that are not finite."""
    generator = torch.Generator().manual_seed(7)
    sizes = (3 * 2048 + 333, 0, 1, 4096, 130, 0)
    xs = [torch.randn(size, generator=generator, dtype=F64).mul(9).to(dtype) for size in sizes]
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, 6e4, -1e-7, 6e-8, 0.0, -0.0])
    xs[0][2050:2058] = special.to(dtype)
    xs[4][:64] = 0
    return xs


def by_codec(codec: Codec, xs: Sequence[Tensor]) -> list[Tensor]:
    """Payloads one by one, from the reference."""
    with use_backend("reference"):
        return [codec.pack_chunk(x) for x in xs]


def comparable(codec: Codec, payload: Tensor) -> Tensor:
    """Return the payload with one NaN for all: a cast may give it any sign and payload."""
    if codec.codec_id not in ("half", "bf16") or payload.numel() == 0:
        return payload
    values = payload.clone().view(F16 if codec.codec_id == "half" else BF16)
    return torch.where(values.isnan(), torch.nan, values).view(torch.uint8)


def encoded(codec: Codec, xs: Sequence[Tensor]) -> list[Tensor]:
    """Encode the list in one call, look at what is between the payloads, and return these."""
    with use_backend("gpu"):
        found = codec.encode([x.to(DEVICE) for x in xs])
    assert found.device_sizes.tolist() == found.sizes
    buffer, payloads, end = found.buffer.cpu(), [], 0
    for size in found.sizes:
        payloads.append(buffer[end : end + size])
        assert not buffer[end + size : end + padded(size)].any()
        end += padded(size)
    assert end == buffer.numel()
    return payloads


def decoded(
    codec: Codec, payloads: Sequence[Tensor], sizes: Sequence[int], like: Sequence[Tensor]
) -> tuple[list[Tensor], list[int]]:
    """Decode payloads said to have ``sizes``; return tensors and states.

    Fails if anything around the tensors, or in those not decoded, was written.
    """
    rooms = [padded(x.nbytes) + GUARD_NBYTES for x in like]
    starts = torch.tensor([GUARD_NBYTES, *rooms]).cumsum(0).tolist()
    memory = torch.full((starts[-1],), GUARD, dtype=torch.uint8, device=DEVICE)
    outs = [
        memory[start : start + x.nbytes].view(x.dtype)
        for start, x in zip(starts, like, strict=False)
    ]
    padding = [torch.full((padded(p.numel()) - p.numel(),), 0xFF) for p in payloads]
    pairs = zip(payloads, padding, strict=True)
    buffer = torch.cat([part.to(torch.uint8) for pair in pairs for part in pair]).to(DEVICE)
    places = torch.tensor([0, *(padded(p.numel()) for p in payloads)]).cumsum(0)[:-1].to(DEVICE)
    given = EncodedList(torch.tensor(sizes, device=DEVICE), buffer, offsets=places)
    with use_backend("gpu"):
        status = codec.decode(given, outs).status.tolist()
    found = [out.cpu().clone() for out in outs]
    for out, state in zip(outs, status, strict=True):
        if state == 0 and out.numel():
            out.view(torch.uint8).fill_(GUARD)
    assert bool((memory == GUARD).all()), "wrote outside of a tensor"
    return found, status


@pytest.mark.parametrize(("name", "options", "dtype"), CASES, ids=IDS)
def test_payloads_and_values_of_a_list_are_those_of_the_codec(name, options, dtype):
    codec, xs = create(name, **options), a_list(dtype)
    expected, found = by_codec(codec, xs), encoded(codec, xs)
    for one, other in zip(expected, found, strict=True):
        assert_bits_equal(comparable(codec, one), comparable(codec, other))
    values, status = decoded(codec, expected, [p.numel() for p in expected], xs)
    assert status == [0] * len(xs)
    for payload, value in zip(expected, values, strict=True):
        out = torch.zeros_like(value)
        with use_backend("reference"):
            decode_one(codec, payload, out)
        assert torch.equal(out.isnan(), value.isnan())
        assert_bits_equal(out.nan_to_num(1.5), value.nan_to_num(1.5))


@pytest.mark.parametrize(("name", "options", "dtype"), CASES[::3], ids=IDS[::3])
def test_a_payload_of_a_wrong_size_is_reported_and_its_tensor_not_written(name, options, dtype):
    codec, xs = create(name, **options), a_list(dtype)
    payloads = by_codec(codec, xs)
    sizes = [p.numel() for p in payloads]
    sizes[0], sizes[1], sizes[3] = sizes[0] - 1, 8, 0
    _, status = decoded(codec, payloads, sizes, xs)
    assert [state != 0 for state in status] == [True, True, False, True, False, False]


@pytest.mark.parametrize(("name", "group"), [("group8", 96), ("group4", 8192), ("fp8", 4096)])
def test_groups_that_no_program_holds_are_composed(name, group):
    codec, xs = create(name, group=group), [torch.randn(3000), torch.randn(17)]
    with use_backend("gpu"):
        found = codec.encode([x.to(DEVICE) for x in xs])
    assert found.device_sizes is None
    for one, other in zip(by_codec(codec, xs), found.payloads(), strict=True):
        assert_bits_equal(one, other.cpu())


@pytest.mark.parametrize("name", ["half", "bf16", "fp8", "group8", "group4", "raw"])
@pytest.mark.parametrize("count", [1, 4])
def test_a_list_is_encoded_into_memory_of_the_caller(name, count):
    codec, xs = create(name), [torch.randn(300 + k, device=DEVICE) for k in range(count)]
    room = sum(padded(codec.max_nbytes(tuple(x.shape), x.dtype)) for x in xs)
    memory = torch.full((room + GUARD_NBYTES,), GUARD, dtype=torch.uint8, device=DEVICE)
    with use_backend("gpu"):
        expected = codec.encode(xs).payloads()
        found = codec.encode(xs, out=memory).payloads()
    assert found[0].data_ptr() == memory.data_ptr()
    for one, other in zip(expected, found, strict=True):
        assert_bits_equal(one, other)
    assert bool((memory[room:] == GUARD).all())


@pytest.mark.parametrize("name", ["half", "fp8", "group8", "group4", "raw"])
def test_memory_may_be_larger_than_needed_and_start_at_any_multiple_of_8(name):
    codec, xs = create(name), [torch.randn(300 + k, device=DEVICE) for k in range(3)]
    memory = torch.full((8192,), GUARD, dtype=torch.uint8, device=DEVICE)
    with use_backend("gpu"):
        expected = codec.encode(xs).payloads()
        found = codec.encode(xs, out=memory[8:])
    assert found.frame().numel() == sum(padded(one.numel()) for one in expected)
    for one, other in zip(expected, found.payloads(), strict=True):
        assert_bits_equal(one, other)
    assert found.payloads()[0].data_ptr() == memory.data_ptr() + 8
    assert bool((memory[:8] == GUARD).all())
