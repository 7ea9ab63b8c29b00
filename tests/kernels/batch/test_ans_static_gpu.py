"""Lists encoded on the device with a table that both sides know have the payloads of the codec ``ans``."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tersor.codecs.stream import Ans
from tersor.kernels.batch import compose
from tersor.kernels.batch.encoders.entropy import AnsEncoder
from tersor.kernels.batch.pipeline import Bounded, Pipeline
from tersor.kernels.entropy.rans import reference
from tersor.kernels.entropy.symbols import body as symbols_body
from tersor.kernels.payload.layout import CODED, CONSTANT, EXACT, HEADER
from tersor.kernels.runtime.op import use_backend
from tersor.types import FLOAT_DTYPES, Bound
from tests.checks import assert_bits_equal
from tests.codecs.variants import NARROW_TABLE, WIDE_TABLE
from tests.one_by_one import decode_one
from tests.triton_device import DEVICE, MARKS
from tests.waiting import errors_on_waiting

pytest.importorskip("triton")
from tersor.kernels.batch.gpu import ans, ans_decode, lists
from tersor.kernels.entropy.rans.gpu import decode_streams, encode_streams
from tersor.kernels.entropy.rans.gpu.table import static_table
from tests.kernels.batch.test_ans_gpu import (
    TILE,
    _small_tiles,  # noqa: F401 - a fixture
    written,
)
from tests.kernels.batch.test_packed_gpu import changed_payloads, starts_of

pytestmark = MARKS

TABLES = {"narrow": tuple(NARROW_TABLE), "wide": tuple(WIDE_TABLE)}
BOUND = Bound.absolute(0.25)


def values(dtype: torch.dtype) -> list[Tensor]:
    """Tensors that are coded, with escapes and outliers in some of their tiles; constant ones; and others."""
    noise = torch.randn(5 * TILE + 7, generator=torch.Generator().manual_seed(5)).clamp(-2.4, 2.4)
    escaping = noise.clone()
    escaping[3], escaping[4 * TILE], escaping[-1] = 900.0, -900.0, 901.0
    mixed = escaping.clone()
    mixed[TILE + 1], mixed[2 * TILE] = torch.nan, torch.inf
    xs = [noise, escaping, mixed, noise[:0], noise[:1], noise[: 2 * TILE], noise * 1e30]
    xs += [torch.full((70,), 2.5), torch.full((70,), torch.nan)]
    return [x.to(dtype) for x in xs]


def encoded(xs: Sequence[Tensor], bounds: Sequence[Bound], table: tuple[int, ...]) -> list[Tensor]:
    made = ans.encode_ans([x.to(DEVICE) for x in xs], bounds, AnsEncoder(frequencies=table))
    assert made.needed is None
    sizes, buffer = made.sizes.tolist(), written(made)
    pairs = zip(starts_of(sizes), sizes, strict=True)
    return [buffer[start : start + size].cpu() for start, size in pairs]


def decoded(
    payloads: Sequence[Tensor], xs: Sequence[Tensor], table: tuple[int, ...]
) -> tuple[list[Tensor], list[int]]:
    sizes = [payload.numel() for payload in payloads]
    starts = starts_of(sizes)
    buffer = torch.full((starts[-1] + sizes[-1] + 64,), 0xFF, dtype=torch.uint8)
    for start, payload in zip(starts, payloads, strict=True):
        buffer[start : start + payload.numel()] = payload
    outs = [torch.zeros_like(x, device=DEVICE) for x in xs]
    places = (torch.tensor(numbers, device=DEVICE) for numbers in (starts, sizes))
    encoder = AnsEncoder(frequencies=table)
    status = ans_decode.decode_ans(buffer.to(DEVICE), *places, outs, encoder)
    return [out.cpu() for out in outs], status.tolist()


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize("name", TABLES)
def test_payloads_with_a_static_table_are_those_of_the_codec(name, dtype):
    table, xs = TABLES[name], values(dtype)
    bounds = [Bound.relative(1e-2) if k % 3 == 2 else BOUND for k in range(len(xs))]
    payloads = encoded(xs, bounds, table)
    with use_backend("reference"):
        for x, bound, payload in zip(xs, bounds, payloads, strict=True):
            assert_bits_equal(Ans(bound=bound, frequencies=table).pack_chunk(x), payload)
    modes = {int(payload[0]) for payload in payloads}
    assert {CODED, EXACT, CONSTANT} >= modes >= {CODED, EXACT}
    found, status = decoded(payloads, xs, table)
    assert status == [0] * len(xs)
    for x, payload, value in zip(xs, payloads, found, strict=True):
        expected = torch.zeros_like(x)
        with use_backend("reference"):
            decode_one(Ans(bound=BOUND, frequencies=table), payload, expected)
        assert_bits_equal(expected, value)


def test_a_static_table_is_tried_with_escapes_and_without():
    payloads = encoded(values(torch.float32), [BOUND] * 9, TABLES["narrow"])
    heads = [
        symbols_body.HEADER.unpack(bytes(p[HEADER.size :][:16].tolist())) for p in payloads[:3]
    ]
    assert [head[2] for head in heads] == [0, 3, 3]


def test_another_table_and_changed_bytes_are_refused():
    x = torch.arange(-50.0, 50.0).sin() * 2
    x[7] = 300.0
    (payload,) = encoded([x], [BOUND], TABLES["narrow"])
    assert int(payload[0]) == CODED
    changed = list(changed_payloads(payload))
    _, status = decoded(changed, [x] * len(changed), TABLES["narrow"])
    codec = Ans(bound=BOUND, frequencies=TABLES["narrow"])
    for one, state in zip(changed, status, strict=True):
        try:
            with use_backend("reference"):
                decode_one(codec, one, torch.zeros_like(x))
        except Exception:  # noqa: BLE001 - refused, in whatever way
            assert state != 0
        else:
            assert state == 0
    other = (TABLES["narrow"][0] - 1, *TABLES["narrow"][1:-1], TABLES["narrow"][-1] + 1)
    assert decoded([payload], [x], other)[1] != [0]
    assert decoded([payload], [x], TABLES["wide"])[1] != [0]


@pytest.mark.gpu
def test_a_list_with_a_static_table_does_not_wait():
    xs = [x.to(DEVICE) for x in values(torch.float32)]
    pipeline = Pipeline(None, Bounded(), 0, AnsEncoder(frequencies=TABLES["narrow"]))
    bounds = [BOUND] * len(xs)
    lists.encode_streams(xs, bounds, pipeline).written()
    with errors_on_waiting():
        made = lists.encode_streams(xs, bounds, pipeline).written()
    expected = compose.encode_streams([x.cpu() for x in xs], bounds, pipeline).payloads()
    starts = starts_of([payload.numel() for payload in expected])
    for start, payload in zip(starts, expected, strict=True):
        assert_bits_equal(payload, made.frame()[start : start + payload.numel()].cpu())


def test_bytes_are_coded_with_a_static_table_and_without_a_bound():
    """What a codec that makes bytes of its own calls."""
    table = tuple([17] * 240 + [1] * 16)
    generator = torch.Generator().manual_seed(6)
    parts = [torch.randint(n, (count,), generator=generator).to(torch.uint8)
             for n, count in ((256, 300), (240, 70), (9, 0), (256, 33))]  # fmt: skip
    capacities = tuple(part.numel() for part in parts)
    starts = torch.tensor([0, 304, 376, 376], device=DEVICE)
    memory = torch.zeros(420, dtype=torch.uint8)
    for start, part in zip(starts.tolist(), parts, strict=True):
        memory[start : start + part.numel()] = part
    counts = torch.tensor(capacities, device=DEVICE)
    alphabets = torch.full((4,), 256, dtype=torch.int32, device=DEVICE)
    shared = static_table(table, torch.device(DEVICE))
    streams = encode_streams.Streams(
        memory.to(DEVICE), starts, counts, capacities, alphabets, alphabets, 4, 420, shared
    )
    made = encode_streams.encode_streams(streams)
    sizes = made.nbytes.tolist()
    places = starts_of(sizes)
    out = torch.zeros(sum(sizes), dtype=torch.uint8, device=DEVICE)
    targets = torch.tensor(places, device=DEVICE) + out.data_ptr()
    encode_streams.place_streams(streams, made, targets)
    frequencies = torch.tensor(table)
    for part, start, size in zip(parts, places, sizes, strict=True):
        if part.numel():
            body = reference.rans_encode(part, 256, frequencies)
            assert_bits_equal(body, out[start : start + size].cpu())
    bodies = decode_streams.Bodies(targets, made.nbytes, counts, alphabets, capacities, 4, shared)
    status = torch.zeros(4, dtype=torch.int32, device=DEVICE)
    back = torch.zeros_like(streams.symbols)
    opened = decode_streams.open_bodies(bodies, status)
    decode_streams.decode_bytes(opened, back, starts, status)
    assert status.tolist() == [0] * 4
    assert_bits_equal(memory, back.cpu())
