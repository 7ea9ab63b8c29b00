"""Streams that are coded together on the device have the bodies that each has alone.

With ``TRITON_INTERPRET=1``, as is set without a GPU, the kernels run on CPU tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tersor.errors import CorruptDataError
from tersor.kernels.entropy.rans import reference
from tersor.types import FLOAT_DTYPES
from tests.checks import assert_bits_equal
from tests.triton_device import DEVICE, MARKS

pytest.importorskip("triton")
from tersor.kernels.entropy.rans.gpu import decode_streams as rans_list_decode
from tersor.kernels.entropy.rans.gpu import encode_streams as rans_list
from tersor.kernels.entropy.symbols.gpu.histogram import num_counts

pytestmark = MARKS


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let streams of a few blocks take several steps of the loop that adds up their words."""
    monkeypatch.setattr(rans_list, "_BLOCKS_PER_STEP", 2)


GUARD = 0x5A
GUARD_NBYTES = 64


@dataclass(frozen=True)
class Stream:
    """Symbols of one stream, and how it lies in its buffer."""

    symbols: Tensor
    alphabet: int
    rotation: int = 0
    spare: int = 0

    @property
    def count(self) -> int:
        return self.symbols.numel()

    @property
    def capacity(self) -> int:
        return self.count + self.spare

    @property
    def body(self) -> Tensor:
        """What the reference makes of it; nothing if there are no symbols."""
        if self.count == 0:
            return torch.zeros(0, dtype=torch.uint8)
        return reference.rans_encode(self.symbols, self.alphabet)


def bell(count: int, alphabet: int, **how: int) -> Stream:
    """Return a stream whose middle symbols are common; the first and last occur."""
    generator = torch.Generator().manual_seed(count + alphabet)
    middle = torch.randn(count, generator=generator) * (alphabet / 8) + alphabet / 2
    symbols = middle.round().clamp(0, alphabet - 1).to(torch.int16)
    symbols[:1], symbols[-1:] = 0, alphabet - 1
    return Stream(symbols, alphabet, **how)


def single(count: int, symbol: int, alphabet: int, **how: int) -> Stream:
    return Stream(torch.full((count,), symbol, dtype=torch.int16), alphabet, **how)


@dataclass(frozen=True)
class Mixed:
    """Streams of bytes, then streams of int16."""

    narrow: Sequence[Stream] = ()
    wide: Sequence[Stream] = ()

    @property
    def streams(self) -> list[Stream]:
        return [*self.narrow, *self.wide]

    @property
    def dtypes(self) -> list[torch.dtype]:
        return [torch.uint8] * len(self.narrow) + [torch.int16] * len(self.wide)

    @property
    def capacities(self) -> tuple[int, ...]:
        return tuple(stream.capacity for stream in self.streams)

    def held(self, gap: int) -> rans_list.Streams:
        """Lay streams one behind the other, ``gap`` symbols of noise between them."""
        starts, parts, end = [], [], 0
        noise = torch.Generator().manual_seed(9)
        for stream, dtype in zip(self.streams, self.dtypes, strict=True):
            room = torch.randint(0, 256, (gap + stream.capacity,), generator=noise)
            held = stream.symbols.long() + stream.rotation
            room[gap : gap + stream.count] = held % 256 if dtype == torch.uint8 else held
            # an int16 starts at an even byte
            parts += [torch.zeros(end % dtype.itemsize, dtype=torch.uint8)]
            parts += [room.to(dtype).view(torch.uint8)]
            starts.append(end + end % dtype.itemsize + gap * dtype.itemsize)
            end = sum(part.numel() for part in parts)
        return rans_list.Streams(
            torch.cat(parts).to(DEVICE),
            torch.tensor(starts, device=DEVICE),
            torch.tensor([stream.count for stream in self.streams], device=DEVICE),
            self.capacities,
            torch.tensor([s.alphabet for s in self.streams], dtype=torch.int32, device=DEVICE),
            torch.tensor([s.rotation for s in self.streams], dtype=torch.int32, device=DEVICE),
            len(self.narrow),
            max([0, *(start + s.capacity for start, s in zip(starts, self.narrow, strict=False))]),
        )


def counted(streams: rans_list.Streams) -> Tensor:
    """Count the symbols."""
    num = num_counts(streams.num_narrow, streams.num_wide)
    counts = torch.zeros(num, dtype=torch.int64, device=DEVICE)
    rans_list.count_symbols(streams, counts)
    return counts


def guarded(sizes: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Return memory with room for parts at multiples of 8, and where they start."""
    starts, end = [], GUARD_NBYTES
    for size in sizes:
        starts.append(end)
        end += -(-size // 8) * 8 + GUARD_NBYTES
    return torch.full((end,), GUARD, dtype=torch.uint8, device=DEVICE), starts


def assert_guards_hold(memory: Tensor, starts: Sequence[int], sizes: Sequence[int]) -> None:
    rest = memory.clone()
    for start, size in zip(starts, sizes, strict=True):
        rest[start : start + size] = GUARD
    assert bool((rest == GUARD).all()), "wrote outside of a part"


def encoded(mixed: Mixed, gap: int = 3) -> list[Tensor]:
    """Encode on the device; return the bodies, after a look at the memory around them."""
    held = mixed.held(gap)
    found = rans_list.encode_streams(held, counted(held))
    sizes = found.nbytes.tolist()
    memory, starts = guarded(sizes)
    targets = torch.tensor(starts, device=DEVICE) + memory.data_ptr()
    rans_list.place_streams(held, found, targets)
    assert_guards_hold(memory, starts, sizes)
    return [memory[start : start + size].cpu() for start, size in zip(starts, sizes, strict=True)]


def bodies_at(
    addresses: Sequence[int], bodies: Sequence[Tensor], mixed: Mixed
) -> rans_list_decode.Bodies:
    return rans_list_decode.Bodies(
        torch.tensor(addresses, device=DEVICE),
        torch.tensor([body.numel() for body in bodies], device=DEVICE),
        torch.tensor([stream.count for stream in mixed.streams], device=DEVICE),
        torch.tensor([s.alphabet for s in mixed.streams], dtype=torch.int32, device=DEVICE),
        mixed.capacities,
        len(mixed.narrow),
    )


def decode_all(
    bodies: rans_list_decode.Bodies, target: Tensor, starts: Sequence[int], status: Tensor
) -> list[int]:
    """Decode all streams; return the sizes of their bodies."""
    opened = rans_list_decode.open_bodies(bodies, status)
    places = torch.tensor(starts, device=DEVICE)
    rans_list_decode.decode_bytes(opened, target, places, status)
    rans_list_decode.decode_shorts(opened, target, places, status)
    return opened.nbytes.tolist()


def decoded(bodies: Sequence[Tensor], mixed: Mixed) -> tuple[list[Tensor], list[int], list[int]]:
    """Decode on the device; return symbols, sizes and states, after a look around the symbols."""
    memory, places = guarded([body.numel() for body in bodies])
    for body, start in zip(bodies, places, strict=True):
        memory[start : start + body.numel()] = body.to(DEVICE)
    pairs = list(zip(mixed.streams, mixed.dtypes, strict=True))
    target, starts = guarded([stream.capacity * dtype.itemsize for stream, dtype in pairs])
    status = torch.zeros(len(pairs), dtype=torch.int32, device=DEVICE)
    addresses = [place + memory.data_ptr() for place in places]
    nbytes = decode_all(bodies_at(addresses, bodies, mixed), target, starts, status)
    used = [stream.count * dtype.itemsize for stream, dtype in pairs]
    assert_guards_hold(target, starts, used)
    found = [
        target[start : start + size].cpu().view(dtype)
        for start, size, dtype in zip(starts, used, mixed.dtypes, strict=True)
    ]
    return found, nbytes, status.tolist()


def assert_as_alone(mixed: Mixed, gap: int = 3) -> None:
    bodies = encoded(mixed, gap)
    for stream, body in zip(mixed.streams, bodies, strict=True):
        assert_bits_equal(stream.body, body)
    symbols, nbytes, status = decoded(bodies, mixed)
    assert status == [0] * len(bodies)
    assert nbytes == [body.numel() for body in bodies]
    for stream, dtype, found in zip(mixed.streams, mixed.dtypes, symbols, strict=True):
        assert_bits_equal(stream.symbols.to(dtype), found)


# one block and two, not a multiple of the lanes, absent ones between the others
NARROW = (
    bell(1, 1),
    bell(31, 9, rotation=250),
    bell(0, 5, spare=40),
    single(70, 2, 3, rotation=255),
    bell(33, 2, spare=7),
    bell(300, 256, rotation=77),
    bell(4100, 40, rotation=3, spare=9000),
    single(5000, 0, 256),
    bell(0, 0),
)
WIDE = (
    bell(90, 9),
    bell(700, 256, spare=5),
    bell(0, 300, spare=5000),
    bell(700, 257),
    bell(1500, 4096, spare=4000),
    bell(1100, 2049),
    bell(1100, 200),
    single(64, 4095, 4096),
    bell(1, 1),
)


def test_bodies_of_a_list_are_those_of_each_stream():
    assert_as_alone(Mixed(narrow=NARROW))


def test_bodies_of_wide_alphabets_are_those_of_each_stream():
    assert_as_alone(Mixed(wide=WIDE), gap=1)


def test_narrow_and_wide_streams_are_coded_together():
    assert_as_alone(Mixed(NARROW[:5], WIDE[:4]), gap=1)


def test_blocks_grow_with_the_count_and_not_with_the_capacity():
    streams = [
        single((1 << 15) - 1, 1, 2, spare=1 << 17),
        single(1 << 15, 1, 2, spare=1 << 17),
        single(1 << 17, 1, 2, spare=5),
    ]
    assert_as_alone(Mixed(narrow=streams), gap=0)


@pytest.mark.gpu
def test_large_streams_have_the_bodies_of_each_stream():
    counts = ((1 << 15) - 1, 1 << 15, (1 << 17) - 1, 1 << 17, (1 << 18) + 77, 3_000_001)
    streams = [bell(count, 90, spare=spare) for count in counts for spare in (0, 1 << 18)]
    assert_as_alone(Mixed(streams, streams))


def test_a_body_without_a_target_is_not_written():
    streams = [bell(70, 9), bell(50, 7)]
    held = Mixed(narrow=streams).held(0)
    found = rans_list.encode_streams(held, counted(held))
    memory, starts = guarded(found.nbytes.tolist())
    targets = torch.tensor([0, starts[1] + memory.data_ptr()], device=DEVICE)
    rans_list.place_streams(held, found, targets)
    size = int(found.nbytes[1])
    assert_guards_hold(memory, starts[1:], [size])
    assert_bits_equal(streams[1].body, memory[starts[1] : starts[1] + size].cpu())


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_values_are_those_of_the_fused_reference(dtype):
    streams = [bell(70, 9), bell(0, 3), bell(150, 200), single(40, 3, 8)]
    lows, steps = [-4, 0, 100_000, -9], [0.375, 1.0, 0.001953125, 3.0]
    memory, addresses = guarded([stream.body.numel() for stream in streams])
    for stream, start in zip(streams, addresses, strict=True):
        memory[start : start + stream.body.numel()] = stream.body.to(DEVICE)
    sizes = [stream.count * dtype.itemsize for stream in streams]
    target, starts = guarded(sizes)
    status = torch.zeros(len(streams), dtype=torch.int32, device=DEVICE)
    bodies = bodies_at(
        [start + memory.data_ptr() for start in addresses],
        [stream.body for stream in streams],
        Mixed(narrow=streams),
    )
    rans_list_decode.decode_values(
        rans_list_decode.open_bodies(bodies, status),
        torch.tensor(starts, device=DEVICE) + target.data_ptr(),
        torch.tensor(lows, dtype=torch.int32, device=DEVICE),
        torch.tensor(steps, dtype=torch.float64, device=DEVICE),
        dtype,
        status,
    )
    assert status.tolist() == [0] * len(streams)
    assert_guards_hold(target, starts, sizes)
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    for stream, low, step, start, size in zip(streams, lows, steps, starts, sizes, strict=True):
        expected = (stream.symbols.to(compute) + low) * step
        assert_bits_equal(expected.to(dtype), target[start : start + size].cpu().view(dtype))


def is_refused(body: Tensor, stream: Stream) -> bool:
    try:
        reference.rans_decode(body, stream.count, stream.alphabet)
    except CorruptDataError:
        return True
    return False


@pytest.mark.parametrize(
    ("stream", "kind", "num_changes"),
    [
        pytest.param(bell(90, 20), "narrow", 60, id="narrow"),
        pytest.param(single(90, 3, 5), "narrow", 60, id="a single symbol"),
        pytest.param(bell(40, 300), "wide", 12, id="wide"),
        pytest.param(bell(1100, 300), "wide", 12, id="wide, from shared memory"),
    ],
)
def test_damaged_bodies_are_refused_as_the_reference_refuses_them(stream, kind, num_changes):
    body = stream.body
    stride = 8 * (1 + body.numel() // (8 * num_changes))
    damaged = [body[:size] for size in range(0, body.numel(), stride)]
    for place in range(0, body.numel(), 1 + body.numel() // num_changes):
        changed = body.clone()
        changed[place] ^= 1 << place % 8
        damaged.append(changed)
    # good ones in between show that each has a state of its own
    bodies = [part for one in damaged for part in (one, body)]
    mixed = Mixed(**{kind: [stream] * len(bodies)})
    symbols, nbytes, status = decoded(bodies, mixed)
    refused = [is_refused(one, stream) for one in damaged]
    assert sum(refused) > len(damaged) // 2
    assert [state != 0 for state in status[::2]] == refused
    assert status[1::2] == [0] * len(damaged)
    assert nbytes[1::2] == [body.numel()] * len(damaged)
    for one in symbols[1::2]:
        assert_bits_equal(stream.symbols.to(one.dtype), one)


@pytest.mark.parametrize(
    ("count", "alphabet"),
    [(200, 20), (-1, 20), (1 << 40, 20), (90, 0), (90, -7), (90, 257), (90, 1 << 20)],
)
def test_counts_and_alphabets_that_cannot_be_are_refused(count, alphabet):
    body = bell(90, 20).body
    memory, starts = guarded([body.numel()])
    memory[starts[0] : starts[0] + body.numel()] = body.to(DEVICE)
    target, places = guarded([100])
    status = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    bodies = rans_list_decode.Bodies(
        torch.tensor([starts[0] + memory.data_ptr()], device=DEVICE),
        torch.tensor([body.numel()], device=DEVICE),
        torch.tensor([count], device=DEVICE),
        torch.tensor([alphabet], dtype=torch.int32, device=DEVICE),
        (100,),
        1,
    )
    nbytes = decode_all(bodies, target, places, status)
    assert status.tolist() == [1]
    assert nbytes == [0]
    assert_guards_hold(target, places, [0])


def test_streams_may_share_a_state():
    """Two streams of one payload, the second damaged, and another payload's, both good."""
    mixed = Mixed([bell(40, 9), bell(50, 7)], [bell(60, 30), bell(70, 300)])
    bodies = [stream.body for stream in mixed.streams]
    memory, places = guarded([body.numel() for body in bodies])
    bodies[2] = bodies[2] ^ 1
    for body, start in zip(bodies, places, strict=True):
        memory[start : start + body.numel()] = body.to(DEVICE)
    target, starts = guarded([2 * capacity for capacity in mixed.capacities])
    status = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    held = bodies_at([place + memory.data_ptr() for place in places], bodies, mixed)
    decode_all(held, target, starts, status)
    assert status.tolist() == [1, 0]
