"""Lists of tensors encoded on the device have the payloads of the codec ``ans``, in every mode.

With ``TRITON_INTERPRET=1``, as is set without a GPU, the kernels run on CPU tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from unittest import mock

import pytest
import torch
from torch import Tensor

from tersor import encode_batch
from tersor.codecs.stream import Ans
from tersor.errors import CorruptDataError
from tersor.kernels.batch.encoders.entropy import AnsEncoder
from tersor.kernels.payload.layout import CODED, CONSTANT, EXACT
from tersor.kernels.quantize import Grid
from tersor.kernels.quantize import reference as quantize
from tersor.kernels.runtime.op import use_backend
from tersor.raw_bytes import padded
from tersor.types import FLOAT_DTYPES, Bound
from tests import data
from tests.checks import assert_bits_equal, assert_rejects

pytest.importorskip("triton")
from tersor.kernels.batch.gpu import ans, ans_decode, ans_plan, ans_quantize
from tersor.kernels.batch.gpu.fused_list import FusedList
from tersor.kernels.entropy.rans.gpu import encode_streams as rans_list
from tests.kernels.batch.test_packed_gpu import changed_payloads, guarded, starts_of
from tests.one_by_one import decode_list, decode_one
from tests.triton_device import DEVICE, INTERPRETED, MARKS
from tests.waiting import errors_on_waiting

pytestmark = MARKS

GUARD = 0xC3
BOUNDS = (Bound.relative(1e-2), Bound.absolute(0.1), Bound.absolute(0.0), Bound.relative(1e-4))
MAX_INTERPRETED_VALUES = 130
"""The interpreter takes milliseconds for 32 symbols, and for every value of a tile."""
TILE = 64 if INTERPRETED else ans_quantize.TILE


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    if INTERPRETED:
        monkeypatch.setattr(ans_quantize, "TILE", TILE)
        monkeypatch.setattr(ans_quantize, "VALUES_PER_STEP", TILE // 2)
    # so that tensors of a few tiles and blocks take several steps of their loops
    monkeypatch.setattr(ans_plan, "_TILES_PER_STEP", 2)
    monkeypatch.setattr(rans_list, "_BLOCKS_PER_STEP", 2)


def inputs(dtype: torch.dtype) -> list[Tensor]:
    """All shared inputs, shortened for the interpreter, else some of several tiles too."""
    xs = [x.contiguous() for x in data.inputs(dtype).values()]
    if INTERPRETED:
        return [x.view(-1)[:MAX_INTERPRETED_VALUES] for x in xs]
    noise = torch.randn(300_001, generator=torch.Generator().manual_seed(1))
    # the last is padded, as a payload has at least one byte per 2**16 values
    return [*xs, noise.to(dtype), noise.mul(1e30).to(dtype), torch.full((1 << 22,), 2.5).to(dtype)]


def written(made: FusedList) -> Tensor:
    """Write all payloads, whatever their sizes are."""
    return made.memory.written(made.memory.capacity)


def encoded(xs: Sequence[Tensor], bounds: Sequence[Bound]) -> tuple[list[Tensor], list[int]]:
    """Encode on the device; return the payloads, on the CPU, and the states."""
    made = ans.encode_ans([x.to(DEVICE) for x in xs], bounds, AnsEncoder())
    sizes, buffer, status = made.sizes, written(made), made.needed
    found = zip(starts_of(sizes.tolist()), sizes.tolist(), strict=True)
    return [buffer[start : start + size].cpu() for start, size in found], status.tolist()


def decoded(
    payloads: Sequence[Tensor], shapes: Sequence[torch.Size], dtype: torch.dtype
) -> tuple[list[Tensor], list[int]]:
    """Decode on the device; return tensors and states, after a look at the memory around them."""
    sizes = [payload.numel() for payload in payloads]
    starts = starts_of(sizes)
    # what does not belong to a payload must not be taken for a part of it
    buffer = torch.full((starts[-1] + sizes[-1] + 64,), 0xFF, dtype=torch.uint8)
    for start, payload in zip(starts, payloads, strict=True):
        buffer[start : start + payload.numel()] = payload
    outs, memory = guarded(shapes, dtype)
    status = ans_decode.decode_ans(
        buffer.to(DEVICE),
        torch.tensor(starts, device=DEVICE),
        torch.tensor(sizes, device=DEVICE),
        outs,
        AnsEncoder(),
    )
    found = [out.cpu().clone() for out in outs]
    for out in outs:
        if out.numel():
            out.view(-1).view(torch.uint8).fill_(GUARD)
    assert bool((memory == GUARD).all()), "wrote outside of a tensor"
    return found, status.tolist()


def by_reference(xs: Sequence[Tensor], bounds: Sequence[Bound]) -> list[Tensor]:
    """Payloads of the codec, one by one."""
    with use_backend("reference"):
        return [Ans(bound=bound).pack_chunk(x) for x, bound in zip(xs, bounds, strict=True)]


def read_by_reference(payload: Tensor, like: Tensor) -> Tensor | None:
    """Decode by the codec; None if it refuses the payload."""
    out = torch.zeros_like(like)
    try:
        with use_backend("reference"):
            decode_one(Ans(bound=Bound.absolute(0.0)), payload, out)
    except CorruptDataError:
        return None
    return out


def spans_too_much(x: Tensor, bound: Bound) -> bool:
    """Say whether the codes of ``x`` need more than 256 symbols."""
    if x.numel() == 0:
        return False
    low, high = quantize.finite_range(x).tolist()
    limits = (low, high) if bound.kind == "relative" else None
    grid = Grid.for_bound(bound.resolve(low, high), x.dtype, limits)
    if grid is None:
        return False
    codes, _ = quantize.bounded_quantize(x, grid)
    return int(codes.max()) - int(codes.min()) >= 256


def assert_same_as_codec(xs: Sequence[Tensor], bounds: Sequence[Bound]) -> list[Tensor]:
    payloads, status = encoded(xs, bounds)
    assert status == [int(spans_too_much(*pair)) for pair in zip(xs, bounds, strict=True)]
    for one, other, state in zip(by_reference(xs, bounds), payloads, status, strict=True):
        if state == 0:
            assert_bits_equal(one, other)
        else:
            assert int(other[0]) in (EXACT, CONSTANT)
    values, states = decoded(payloads, [x.shape for x in xs], xs[0].dtype)
    assert states == [0] * len(xs)
    for x, payload, value in zip(xs, payloads, values, strict=True):
        assert_bits_equal(read_by_reference(payload, x), value)
    return payloads


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_a_whole_tile_may_have_a_value_without_a_code(dtype):
    # floats lie so far apart out there that these decode exactly, though no code can hold them
    far = [sign * 2.0**power for sign in (1, -1) for power in (20, 22, 23, 24, 25, 31, 40, 100)]
    odd = [torch.nan, torch.inf, -torch.inf, 1e30, -1e30, *far]
    xs = []
    for value in odd:
        x = torch.linspace(-8, 8, TILE)
        x[TILE // 3] = value
        xs.append(x.to(dtype))
    # codes that are in range, of values that decode to others than their own
    xs += [(torch.linspace(-8, 8, TILE) + middle).to(dtype) for middle in (1e6, -1e6, 2e4, 1e3)]
    assert_same_as_codec(xs, [Bound.absolute(0.25)] * len(xs))


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_payloads_of_a_list_are_those_of_the_codec(dtype):
    # long enough to be coded in 16-bit floats too, with an outlier
    x = (torch.arange(4 * TILE) % 3).to(dtype)
    x[TILE // 3] = torch.nan
    xs = [*inputs(dtype), x]
    payloads = assert_same_as_codec(
        [x for x in xs for _ in BOUNDS], [bound for _ in xs for bound in BOUNDS]
    )
    assert {int(payload[0]) for payload in payloads} == {EXACT, CODED, CONSTANT}
    assert any(payload[4] for payload in payloads if payload[0] == CODED), "no outliers"


def test_any_tile_may_hold_the_extreme_codes_and_the_outliers():
    x = torch.zeros(2 * TILE + TILE // 2)
    x[TILE // 3], x[TILE], x[-1] = 3.0, -40.0, 50.0
    x[TILE - 1], x[2 * TILE + 1] = float("nan"), float("inf")
    parts = [x, x[:TILE], x[: TILE + 9], x[TILE // 2 :], x[1:]]
    assert_same_as_codec(parts, [Bound.absolute(0.4)] * len(parts))


def test_an_empty_list_entry_is_a_header_alone():
    xs = [torch.zeros(0), torch.zeros(3, 0), torch.arange(40.0), torch.zeros(0)]
    bounds = [Bound.relative(0.1), Bound.absolute(0.1), Bound.relative(0.01), Bound.absolute(0.0)]
    payloads = assert_same_as_codec(xs, bounds)
    assert [payload.numel() for payload in payloads if payload.numel() == 24] == [24] * 3


@pytest.mark.parametrize(
    ("x", "bound"),
    [
        pytest.param(torch.arange(-50.0, 50.0).sin() * 9, Bound.absolute(0.1), id="coded"),
        pytest.param(
            torch.tensor([1.0, 2.0, float("nan"), -5.0] * 20), Bound.absolute(0.1), id="outliers"
        ),
        pytest.param(torch.full((90,), 2.5), Bound.relative(0.1), id="constant"),
        pytest.param(torch.full((90,), 2.5), Bound.absolute(0.1), id="single symbol"),
        pytest.param(torch.arange(90.0) * 1e-42, Bound.absolute(0.0), id="exact"),
    ],
)
def test_changed_payloads_are_refused_as_the_codec_refuses_them(x, bound):
    (payload,) = by_reference([x], [bound])
    changed = list(changed_payloads(payload))
    # well-formed ones in between show that each has a state of its own
    payloads = [part for one in changed for part in (one, payload)]
    values, status = decoded(payloads, [x.shape] * len(payloads), x.dtype)
    original = read_by_reference(payload, x)
    assert any(status[::2])
    for k, one in enumerate(payloads):
        expected = original if k % 2 else read_by_reference(one, x)
        assert (status[k] == 0) == (expected is not None), f"payload {k}"
        if expected is not None:
            assert_bits_equal(expected, values[k])


def wide_and_escaping() -> list[Tensor]:
    """Return a tensor with more than 256 symbols, and one with escapes, between narrow ones."""
    generator = torch.Generator().manual_seed(3)
    narrow = torch.randn(90, generator=generator)
    wide = torch.rand(2500, generator=generator) * 400
    escaping = torch.cat([torch.randn(500, generator=generator), torch.tensor([1e5, -1e5])])
    return [narrow, wide, narrow * 2, escaping, narrow * 3]


def test_wide_payloads_of_small_tensors_are_left_to_others():
    xs = wide_and_escaping()
    payloads = by_reference(xs, [Bound.absolute(0.5)] * 5)
    values, status = decoded(payloads, [x.shape for x in xs], torch.float32)
    assert status == [0, ans_decode.UNKNOWN.value, 0, 0, 0]
    for k in (0, 2, 3, 4):
        assert_bits_equal(read_by_reference(payloads[k], xs[k]), values[k])


def test_the_codec_writes_and_reads_the_same_bytes_for_lists_as_for_single_tensors():
    xs = [*wide_and_escaping(), torch.zeros(0), torch.full((7,), float("nan"))]
    codec = Ans(bound=Bound.absolute(0.5))
    expected = by_reference(xs, [codec.bound] * len(xs))
    moved = [x.to(DEVICE) for x in xs]
    with use_backend("gpu"):
        payloads = encode_batch(moved, [codec] * len(moved)).payloads()
        for one, other in zip(expected, payloads, strict=True):
            assert_bits_equal(one, other.cpu())
        outs = [torch.zeros_like(x) for x in moved]
        decode_list(codec, payloads, outs)
        cut = [payloads[0][:-8], *payloads[1:]]
        assert_rejects(lambda: decode_list(codec, cut, outs), CorruptDataError)
    for x, payload, out in zip(xs, expected, outs, strict=True):
        assert_bits_equal(read_by_reference(payload, x), out.cpu())


@pytest.mark.parametrize("missing", [1, 8, 400])
def test_payloads_that_do_not_fit_their_memory_are_not_written(missing):
    xs = [
        torch.arange(-40.0, 40.0),
        torch.full((90,), 2.5),
        torch.randn(90) * 1e30,
        torch.arange(50.0),
    ]
    made = ans.encode_ans([x.to(DEVICE) for x in xs], [Bound.absolute(0.4)] * 4, AnsEncoder())
    sizes = made.sizes.tolist()
    whole, room = written(made), sum(map(padded, sizes)) - missing
    guarded_empty = partial(torch.full, fill_value=GUARD)
    with mock.patch.object(torch, "empty", lambda n, **how: guarded_empty((n,), **how)):
        found = made.memory.written(room)
    assert found.numel() == room
    for start, size in zip(starts_of(sizes), sizes, strict=True):
        stop = start + padded(size)
        if stop <= room:
            assert_bits_equal(whole[start:stop], found[start:stop])
        else:
            assert bool((found[start:] == GUARD).all())


@pytest.mark.gpu
def test_lists_are_encoded_and_decoded_without_waiting():
    xs = [torch.randn(5000, device=DEVICE), torch.randn(70_000, device=DEVICE)]
    bounds = [Bound.relative(0.01)] * 2
    outs = [torch.empty_like(x) for x in xs]

    def step() -> Tensor:
        made = ans.encode_ans(xs, bounds, AnsEncoder())
        rooms = (made.sizes + 7) // 8 * 8
        starts = rooms.cumsum(0) - rooms
        return ans_decode.decode_ans(written(made), starts, made.sizes, outs, AnsEncoder())

    step()
    with errors_on_waiting():
        status = step()
    assert status.tolist() == [0, 0]
