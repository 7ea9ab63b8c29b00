"""Lists of tensors encoded on the device have the payloads of the codec ``flat``, in every mode.

With ``TRITON_INTERPRET=1``, as is set without a GPU, the kernels run on CPU tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from tersor.codecs.stream import Flat
from tersor.errors import CorruptDataError
from tersor.kernels.batch.encoded_list import Unwritten
from tersor.kernels.batch.encoders.bitpack import BitpackEncoder
from tersor.kernels.runtime.op import use_backend
from tersor.raw_bytes import padded
from tersor.types import Bound
from tests import data
from tests.checks import assert_bits_equal
from tests.one_by_one import decode_one
from tests.triton_device import DEVICE, INTERPRETED, MARKS

pytest.importorskip("triton")
from tersor.kernels.batch.gpu import packed, packed_decode, packed_short

pytestmark = MARKS

GUARD_NBYTES = 64
GUARD = 0xC3
BOUNDS = (Bound.relative(1e-2), Bound.absolute(0.1), Bound.absolute(0.0))
# coded with and without outliers, constant, exact, and nothing at all
INPUTS = (
    "empty",
    "scalar",
    "one_nan",
    "odd_size",
    "constant",
    "relu_activations",
    "nan_and_inf",
    "all_nan",
    "wide_range",
    "huge",
    "subnormal",
)


def starts_of(sizes: Sequence[int]) -> list[int]:
    """Return where payloads start that lie back to back, each padded to 8 bytes."""
    ends = torch.tensor([padded(size) for size in sizes]).cumsum(0).tolist()
    return [0, *ends[:-1]]


def encoded(xs: Sequence[Tensor], bounds: Sequence[Bound], block: int) -> list[Tensor]:
    """Encode on the device; return the payloads on the CPU."""
    sizes, memory, _, _ = packed.encode_packed(
        [x.to(DEVICE) for x in xs], bounds, BitpackEncoder(block=block)
    )
    buffer = memory.written(memory.capacity) if isinstance(memory, Unwritten) else memory
    found = zip(starts_of(sizes.tolist()), sizes.tolist(), strict=True)
    return [buffer[start : start + size].cpu() for start, size in found]


def guarded(shapes: Sequence[torch.Size], dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """Return tensors to write into, and the memory around all of them."""
    rooms = [GUARD_NBYTES + padded(shape.numel() * dtype.itemsize) for shape in shapes]
    memory = torch.full((sum(rooms) + GUARD_NBYTES,), GUARD, dtype=torch.uint8, device=DEVICE)
    outs, end = [], 0
    for shape, room in zip(shapes, rooms, strict=True):
        start = end + GUARD_NBYTES
        part = memory[start : start + shape.numel() * dtype.itemsize]
        outs.append(part.view(dtype).view(shape))
        end += room
    return outs, memory


def decoded(
    payloads: Sequence[Tensor], shapes: Sequence[torch.Size], dtype: torch.dtype, block: int
) -> tuple[list[Tensor], list[int]]:
    """Decode on the device; return tensors and states, after a look at the memory around them."""
    sizes = [payload.numel() for payload in payloads]
    # what does not belong to a payload must not be taken for a part of it
    buffer = torch.full((sum(map(padded, sizes)),), 0xFF, dtype=torch.uint8)
    for start, payload in zip(starts_of(sizes), payloads, strict=True):
        buffer[start : start + payload.numel()] = payload
    outs, memory = guarded(shapes, dtype)
    offsets = torch.tensor(starts_of(sizes), device=DEVICE)
    status = packed_decode.decode_packed(
        buffer.to(DEVICE),
        offsets,
        torch.tensor(sizes, device=DEVICE),
        outs,
        BitpackEncoder(block=block),
    )
    found = [out.cpu().clone() for out in outs]
    for out in outs:
        if out.numel():
            out.view(-1).view(torch.uint8).fill_(GUARD)
    assert bool((memory == GUARD).all()), "wrote outside of a tensor"
    return found, status.tolist()


def by_reference(xs: Sequence[Tensor], bounds: Sequence[Bound], block: int) -> list[Tensor]:
    """Payloads of the codec, one by one."""
    with use_backend("reference"):
        pairs = zip(xs, bounds, strict=True)
        return [Flat(bound=bound, block=block).pack_chunk(x) for x, bound in pairs]


def read_by_reference(payload: Tensor, like: Tensor, block: int) -> Tensor | None:
    """Decode by the codec; None if it refuses the payload."""
    out = torch.zeros_like(like)
    try:
        with use_backend("reference"):
            decode_one(Flat(bound=Bound.absolute(0.0), block=block), payload, out)
    except CorruptDataError:
        return None
    return out


def assert_same_as_codec(xs: Sequence[Tensor], bounds: Sequence[Bound], block: int) -> None:
    expected = by_reference(xs, bounds, block)
    found = encoded(xs, bounds, block)
    for one, other in zip(expected, found, strict=True):
        assert_bits_equal(one, other)
    values, status = decoded(found, [x.shape for x in xs], xs[0].dtype, block)
    assert status == [0] * len(xs)
    for x, payload, value in zip(xs, found, values, strict=True):
        assert_bits_equal(read_by_reference(payload, x, block), value)


@pytest.mark.parametrize(
    ("dtype", "block", "names"),
    [
        pytest.param(torch.float32, 32, INPUTS, id="float32"),
        pytest.param(torch.float32, 64, INPUTS[3:7], id="float32 in blocks of 64"),
        pytest.param(torch.float64, 32, INPUTS[3:], id="float64"),
        pytest.param(torch.float16, 64, INPUTS[3:], id="float16 in blocks of 64"),
        pytest.param(torch.bfloat16, 32, INPUTS[3:], id="bfloat16"),
    ],
)
def test_payloads_of_a_list_are_those_of_the_codec(dtype, block, names):
    inputs = [data.make(name, dtype).contiguous() for name in names]
    xs = [x for x in inputs for _ in BOUNDS]
    assert_same_as_codec(xs, BOUNDS * len(inputs), block)


# at most 8192 values each: a list without larger ones is packed by another kernel
SMALL_INPUTS = ("empty", "scalar", "odd_size", "constant", "nan_and_inf", "all_nan", "huge")


@pytest.mark.parametrize(
    ("dtype", "block"),
    [(torch.float32, 32), (torch.float64, 64), (torch.float16, 32), (torch.bfloat16, 64)],
)
def test_payloads_of_a_list_of_small_tensors_are_those_of_the_codec(dtype, block):
    inputs = [data.make(name, dtype).contiguous() for name in SMALL_INPUTS]
    xs = [x for x in inputs for _ in BOUNDS]
    assert packed.are_small([x.numel() for x in xs])
    assert_same_as_codec(xs, BOUNDS * len(inputs), block)


def test_the_places_of_many_small_payloads_follow_from_those_before_them(monkeypatch):
    monkeypatch.setattr(packed_short, "_LANES", 16)
    generator = torch.Generator().manual_seed(8)
    xs = [torch.randn(k % 7, generator=generator) for k in range(40)]
    large = (700, 300) if INTERPRETED else (8192, 3000)
    xs[13], xs[39] = (torch.randn(size, generator=generator) for size in large)
    assert_same_as_codec(xs, [Bound.relative(0.01)] * 40, 32)


def test_a_list_is_small_by_its_largest_tensor_and_by_its_length():
    assert packed.are_small([0, 8192])
    assert not packed.are_small([8193, 1])
    assert not packed.are_small([1] * 513)


@pytest.fixture(params=["small lists apart", "all lists alike"])
def _grouping(request, monkeypatch):
    if request.param == "all lists alike":
        monkeypatch.setattr(packed, "are_small", lambda numels: False)
        monkeypatch.setattr(packed_decode, "are_small", lambda numels: False)


@pytest.mark.usefixtures("_grouping")
@pytest.mark.parametrize("block", [32, 64])
def test_narrow_blocks_next_to_wide_ones_are_packed_right(block):
    generator = torch.Generator().manual_seed(5)
    magnitudes = torch.randint(0, 22, (3, 12), generator=generator)
    magnitudes[0, :] = torch.tensor([21, 1] * 6)
    magnitudes[1, :8] = torch.arange(8)
    noise = torch.rand(3, 12, 100, generator=generator) * 2 - 1
    xs = list(noise.mul(torch.exp2(magnitudes.float())[:, :, None]).round().view(3, -1))
    assert_same_as_codec(xs, [Bound.absolute(0.5)] * 3, block)


@pytest.mark.usefixtures("_grouping")
def test_an_empty_list_entry_is_a_header_alone():
    xs = [torch.zeros(0), torch.zeros(3, 0), torch.arange(40.0), torch.zeros(0)]
    bounds = [Bound.relative(0.1), Bound.absolute(0.1), Bound.relative(0.01), Bound.absolute(0.0)]
    payloads = encoded(xs, bounds, 32)
    assert [payload.numel() for payload in payloads if payload.numel() == 24] == [24] * 3
    assert_same_as_codec(xs, bounds, 32)


def changed_payloads(payload: Tensor) -> Iterator[Tensor]:
    """One bit changed at a time, all over the payload but mostly at its ends, and cut ones."""
    near = [*range(40), *range(payload.numel() - 16, payload.numel())]
    spread = range(40, payload.numel(), 1 + payload.numel() // 16)
    for place in sorted({place for place in (*near, *spread) if 0 <= place < payload.numel()}):
        changed = payload.clone()
        changed[place] ^= 1 << (place * 5 % 8)
        yield changed
    for size in (0, 8, 23, 24, payload.numel() // 2, payload.numel() - 8, payload.numel() - 1):
        yield payload[:size]
    yield torch.cat([payload, torch.zeros(8, dtype=torch.uint8)])
    yield torch.cat([payload, torch.ones(8, dtype=torch.uint8)])


@pytest.mark.usefixtures("_grouping")
@pytest.mark.parametrize(
    ("name", "bound"),
    [
        pytest.param("odd_size", Bound.absolute(0.1), id="coded"),
        pytest.param("nan_and_inf", Bound.absolute(0.1), id="coded with outliers"),
        pytest.param("constant", Bound.relative(0.1), id="constant"),
        pytest.param("subnormal", Bound.absolute(0.0), id="exact"),
    ],
)
def test_changed_payloads_are_refused_as_the_codec_refuses_them(name, bound):
    x = data.make(name, torch.float32).contiguous().view(-1)[:1100]
    (payload,) = by_reference([x], [bound], 32)
    changed = list(changed_payloads(payload))
    # well-formed ones in between show that each has a state of its own
    payloads = [part for one in changed for part in (one, payload)]
    values, status = decoded(payloads, [x.shape] * len(payloads), x.dtype, 32)
    original = read_by_reference(payload, x, 32)
    assert any(status[::2])
    for k, one in enumerate(payloads):
        expected = original if k % 2 else read_by_reference(one, x, 32)
        assert (status[k] == 0) == (expected is not None), f"payload {k}"
        if expected is not None:
            assert_bits_equal(expected, values[k])


@pytest.mark.parametrize("block", [32, 64])
def test_a_payload_of_one_list_decodes_in_another(block):
    xs = [data.make(name, torch.float32).contiguous() for name in ("odd_size", "constant", "huge")]
    payloads = by_reference(xs, [Bound.relative(1e-3)] * 3, block)
    values, status = decoded(payloads[::-1], [x.shape for x in xs[::-1]], torch.float32, block)
    assert status == [0, 0, 0]
    for x, payload, value in zip(xs, payloads, values[::-1], strict=True):
        assert_bits_equal(read_by_reference(payload, x, block), value)


@pytest.mark.parametrize("dims", [0, 1])
def test_only_tiles_that_do_not_prove_that_values_vary_look_for_the_range(dims):
    generator = torch.Generator().manual_seed(7)
    varied = torch.randn(2048, generator=generator)
    varied[5] = float("nan")
    uniform = torch.full((2048,), 3.0)
    uniform[5] = float("inf")
    xs = [varied.to(DEVICE), uniform.to(DEVICE)]
    keys = torch.zeros(4, dtype=torch.int32, device=DEVICE)
    limits = packed.bound_table(((0.01, False),) * 2, DEVICE)
    grids = packed.grid_table(keys, limits, torch.float32)
    starts = packed.addresses(xs, DEVICE)
    ends = packed._measure(packed._List.of(xs, 32, dims), starts, grids, keys).cpu()
    assert keys[:2].tolist() == [0, 0]
    assert all(keys[2:].tolist())
    num_tiles = 4
    assert ends[-num_tiles:].diff(prepend=ends[-num_tiles - 1 : -num_tiles]).tolist() == [
        1,
        1,
        0,
        0,
    ]


@pytest.mark.parametrize("dims", [0, 1])
@pytest.mark.parametrize("change", ["wider", "outliers"])
def test_values_that_change_while_they_are_encoded_stay_within_their_memory(dims, change):
    x = torch.randn(9216, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    sizes, memory, _, _ = packed.encode_packed(
        [x], [Bound.absolute(0.1)], BitpackEncoder(), dims=dims
    )
    if change == "wider":
        x.mul_(1e4)
    else:
        x[100:9000] = float("nan")
    nbytes = int(sizes)
    room = torch.full((nbytes + 4 * x.nbytes,), GUARD, dtype=torch.uint8, device=DEVICE)
    with monkeypatched_empty(room):
        memory.written(nbytes)
    assert bool((room[nbytes:] == GUARD).all()), "wrote behind the payload"
    out = torch.empty_like(x)
    status = packed_decode.decode_packed(
        room[:nbytes], torch.zeros(1, dtype=torch.int64, device=DEVICE), sizes, [out],
        BitpackEncoder(), dims=dims,
    )  # fmt: skip
    assert status.tolist() == [1] or change == "outliers"


@contextmanager
def monkeypatched_empty(room: Tensor) -> Iterator[None]:
    """Let the next allocation of uint8 be the start of ``room``."""
    original = torch.empty

    def empty(size, *args, **options):
        if options.get("dtype") == torch.uint8:
            return room[:size]
        return original(size, *args, **options)

    torch.empty = empty
    try:
        yield
    finally:
        torch.empty = original
