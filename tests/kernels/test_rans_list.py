"""Streams that are coded together on the device have the bodies that each has alone.

With ``TRITON_INTERPRET=1``, as is set without a GPU, the kernels run on CPU tensors.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tersor.errors import CorruptDataError
from tersor.kernels.rans import reference
from tersor.types import FLOAT_DTYPES
from tests.checks import assert_bits_equal

pytest.importorskip("triton")
from tersor.kernels.rans_list import gpu as rans_list

_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cpu" if _INTERPRETED else "cuda")
pytestmark = [] if _INTERPRETED else [pytest.mark.gpu]

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


def on_device(streams: Sequence[Stream], dtype: torch.dtype, gap: int) -> rans_list.Streams:
    """Lay streams one behind the other, ``gap`` symbols of noise between them."""
    starts, parts, end = [], [], 0
    noise = torch.Generator().manual_seed(9)
    for stream in streams:
        room = torch.randint(0, 256, (gap + stream.capacity,), generator=noise)
        held = stream.symbols.long() + stream.rotation
        room[gap : gap + stream.count] = held % 256 if dtype == torch.uint8 else held
        starts.append(end + gap)
        parts.append(room)
        end += room.numel()
    return rans_list.Streams(
        torch.cat(parts).to(dtype).to(DEVICE),
        torch.tensor(starts, device=DEVICE),
        torch.tensor([stream.count for stream in streams], device=DEVICE),
        tuple(stream.capacity for stream in streams),
        torch.tensor([s.alphabet for s in streams], dtype=torch.int32, device=DEVICE),
        torch.tensor([s.rotation for s in streams], dtype=torch.int32, device=DEVICE),
    )


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


def encoded(streams: Sequence[Stream], dtype: torch.dtype, gap: int = 3) -> list[Tensor]:
    """Encode on the device; return the bodies, after a look at the memory around them."""
    held = on_device(streams, dtype, gap)
    found = rans_list.encode_streams(held)
    sizes = found.nbytes.tolist()
    memory, starts = guarded(sizes)
    targets = torch.tensor(starts, device=DEVICE) + memory.data_ptr()
    rans_list.place_streams(held, found, targets)
    assert_guards_hold(memory, starts, sizes)
    return [memory[start : start + size].cpu() for start, size in zip(starts, sizes, strict=True)]


def decoded(
    bodies: Sequence[Tensor], streams: Sequence[Stream], dtype: torch.dtype
) -> tuple[list[Tensor], list[int], list[int]]:
    """Decode on the device; return symbols, sizes and states, after a look around the symbols."""
    memory, addresses = guarded([body.numel() for body in bodies])
    for body, start in zip(bodies, addresses, strict=True):
        memory[start : start + body.numel()] = body.to(DEVICE)
    rooms = [stream.capacity * dtype.itemsize for stream in streams]
    target, starts = guarded(rooms)
    status = torch.zeros(len(streams), dtype=torch.int32, device=DEVICE)
    nbytes = rans_list.decode_streams(
        torch.tensor(addresses, device=DEVICE) + memory.data_ptr(),
        torch.tensor([body.numel() for body in bodies], device=DEVICE),
        torch.tensor([stream.count for stream in streams], device=DEVICE),
        torch.tensor([stream.alphabet for stream in streams], dtype=torch.int32, device=DEVICE),
        [stream.capacity for stream in streams],
        target.view(dtype),
        torch.tensor(starts, device=DEVICE) // dtype.itemsize,
        status,
    )
    used = [stream.count * dtype.itemsize for stream in streams]
    assert_guards_hold(target, starts, used)
    found = [
        target[start : start + size].cpu().view(dtype)
        for start, size in zip(starts, used, strict=True)
    ]
    return found, nbytes.tolist(), status.tolist()


def assert_as_alone(streams: Sequence[Stream], dtype: torch.dtype, gap: int = 3) -> None:
    expected = [stream.body for stream in streams]
    bodies = encoded(streams, dtype, gap)
    for one, other in zip(expected, bodies, strict=True):
        assert_bits_equal(one, other)
    symbols, nbytes, status = decoded(bodies, streams, dtype)
    assert status == [0] * len(streams)
    assert nbytes == [body.numel() for body in bodies]
    for stream, found in zip(streams, symbols, strict=True):
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
    single(64, 4095, 4096),
    bell(1, 1),
)


def test_bodies_of_a_list_are_those_of_each_stream():
    assert_as_alone(NARROW, torch.uint8)


def test_bodies_of_wide_alphabets_are_those_of_each_stream():
    assert_as_alone(WIDE, torch.int16, gap=1)


def test_blocks_grow_with_the_count_and_not_with_the_capacity():
    streams = [
        single((1 << 15) - 1, 1, 2, spare=1 << 17),
        single(1 << 15, 1, 2, spare=1 << 17),
        single(1 << 17, 1, 2, spare=5),
    ]
    assert_as_alone(streams, torch.uint8, gap=0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
def test_large_streams_have_the_bodies_of_each_stream(dtype):
    counts = ((1 << 15) - 1, 1 << 15, (1 << 17) - 1, 1 << 17, (1 << 18) + 77, 3_000_001)
    streams = [bell(count, 90, spare=spare) for count in counts for spare in (0, 1 << 18)]
    assert_as_alone(streams, dtype)


def test_a_body_without_a_target_is_not_written():
    streams = [bell(70, 9), bell(50, 7)]
    held = on_device(streams, torch.uint8, 0)
    found = rans_list.encode_streams(held)
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
    bodies = rans_list.Bodies(
        torch.tensor(addresses, device=DEVICE) + memory.data_ptr(),
        torch.tensor([stream.body.numel() for stream in streams], device=DEVICE),
        torch.tensor([stream.count for stream in streams], device=DEVICE),
        torch.tensor([stream.alphabet for stream in streams], dtype=torch.int32, device=DEVICE),
        tuple(stream.capacity for stream in streams),
    )
    rans_list.decode_values(
        bodies,
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
    ("stream", "dtype", "num_changes"),
    [
        pytest.param(bell(90, 20), torch.uint8, 60, id="narrow"),
        pytest.param(single(90, 3, 5), torch.uint8, 60, id="a single symbol"),
        pytest.param(bell(40, 300), torch.int16, 12, id="wide"),
    ],
)
def test_damaged_bodies_are_refused_as_the_reference_refuses_them(stream, dtype, num_changes):
    body = stream.body
    stride = 8 * (1 + body.numel() // (8 * num_changes))
    damaged = [body[:size] for size in range(0, body.numel(), stride)]
    for place in range(0, body.numel(), 1 + body.numel() // num_changes):
        changed = body.clone()
        changed[place] ^= 1 << place % 8
        damaged.append(changed)
    # good ones in between show that each has a state of its own
    bodies = [part for one in damaged for part in (one, body)]
    symbols, nbytes, status = decoded(bodies, [stream] * len(bodies), dtype)
    refused = [is_refused(one, stream) for one in damaged]
    assert sum(refused) > len(damaged) // 2
    assert [state != 0 for state in status[::2]] == refused
    assert status[1::2] == [0] * len(damaged)
    assert nbytes[1::2] == [body.numel()] * len(damaged)
    for one in symbols[1::2]:
        assert_bits_equal(stream.symbols.to(dtype), one)


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
    nbytes = rans_list.decode_streams(
        torch.tensor([starts[0] + memory.data_ptr()], device=DEVICE),
        torch.tensor([body.numel()], device=DEVICE),
        torch.tensor([count], device=DEVICE),
        torch.tensor([alphabet], dtype=torch.int32, device=DEVICE),
        [100],
        target,
        torch.tensor(places, device=DEVICE),
        status,
    )
    assert status.tolist() == [1]
    assert nbytes.tolist() == [0]
    assert_guards_hold(target, places, [0])
