"""Lists of matrices encoded on the device have the payloads of the codec ``rows`` with rANS.

With ``TRITON_INTERPRET=1``, as is set without a GPU, the kernels run on CPU tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from tersor import encode_batch
from tersor.codecs.rows import Rows
from tersor.errors import CorruptDataError
from tersor.kernels.runtime.op import use_backend
from tersor.raw_bytes import padded
from tersor.types import FLOAT_DTYPES, Bound
from tests.checks import assert_bits_equal, assert_within_bound
from tests.one_by_one import decode_list, decode_one
from tests.triton_device import DEVICE, INTERPRETED, MARKS

pytest.importorskip("triton")
from tersor.kernels.batch.gpu import rows_plan
from tersor.kernels.batch.gpu.rows import encode_rows_list
from tersor.kernels.batch.gpu.rows_decode import decode_rows_list
from tersor.kernels.rows import compose as rows_compose
from tersor.kernels.rows.dedup.gpu import slots

pytestmark = MARKS

GUARD_NBYTES = 64
GUARD = 0xC3
MODE, FORM = 0, 24 + 4
"""Bytes of a payload: how it is stored, and the form of the index of a coded one."""
EXACT, CODED, CONSTANT = 0, 1, 2


def codec(bound: Bound) -> Rows:
    return Rows(bound=bound, entropy="ans")


def repeated(num_rows: int, num_distinct: int, width: int, dtype=torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(num_rows + width)
    table = torch.randn(num_distinct, width, generator=generator)
    return table[torch.randint(0, num_distinct, (num_rows,), generator=generator)].to(dtype)


def merging(num_rows: int, width: int) -> Tensor:
    """Rows that all differ, but by less than a bound of 0.1 or 1 % of the range can tell."""
    generator = torch.Generator().manual_seed(width)
    base = torch.randint(-3, 4, (5, width), generator=generator).float()
    chosen = torch.randint(0, 5, (num_rows,), generator=generator)
    return base[chosen] + torch.rand(num_rows, width, generator=generator) * 1e-3


def skewed(num_rows: int, side: int) -> Tensor:
    """Return ``side**2`` rows of two values, then repetitions of mostly the first ones."""
    generator = torch.Generator().manual_seed(side)
    number = torch.rand(num_rows - side * side, generator=generator).pow(8) * side * side
    number = torch.cat([torch.arange(side * side), number.long()])
    return torch.stack([number // side, number % side], 1).float()


def starts_of(sizes: Sequence[int]) -> list[int]:
    """Return where payloads start that lie back to back, each padded to 8 bytes."""
    ends = torch.tensor([padded(size) for size in sizes]).cumsum(0).tolist()
    return [0, *ends[:-1]]


def encoded(xs: Sequence[Tensor], bounds: Sequence[Bound]) -> tuple[list[Tensor], list[int]]:
    """Encode on the device; return the payloads on the CPU, and states."""
    sizes, unwritten, status, _ = encode_rows_list([x.to(DEVICE) for x in xs], bounds)
    buffer = unwritten.written(unwritten.capacity)
    found = zip(starts_of(sizes.tolist()), sizes.tolist(), strict=True)
    return [buffer[start : start + size].cpu() for start, size in found], status.tolist()


def guarded(shapes: Sequence[torch.Size], dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """Return matrices to write into, and the memory around all of them."""
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
    payloads: Sequence[Tensor], shapes: Sequence[torch.Size], dtype: torch.dtype
) -> tuple[list[Tensor], list[int]]:
    """Decode on the device; return matrices and states, after a look at the memory around them."""
    sizes = [payload.numel() for payload in payloads]
    # what does not belong to a payload must not be taken for a part of it
    buffer = torch.full((sum(map(padded, sizes)),), 0xFF, dtype=torch.uint8)
    for start, payload in zip(starts_of(sizes), payloads, strict=True):
        buffer[start : start + payload.numel()] = payload
    outs, memory = guarded(shapes, dtype)
    offsets = torch.tensor(starts_of(sizes), device=DEVICE)
    status = decode_rows_list(buffer.to(DEVICE), offsets, torch.tensor(sizes, device=DEVICE), outs)
    found = [out.cpu().clone() for out in outs]
    for out in outs:
        if out.numel():
            out.view(-1).view(torch.uint8).fill_(GUARD)
    assert bool((memory == GUARD).all()), "wrote outside of a matrix"
    return found, status.tolist()


def by_codec(xs: Sequence[Tensor], bounds: Sequence[Bound]) -> list[Tensor]:
    """Payloads of the codec, one by one, on the CPU."""
    with use_backend("cpu"):
        return [codec(b).pack_chunk(x) for x, b in zip(xs, bounds, strict=True)]


def read_by_codec(payload: Tensor, like: Tensor) -> Tensor | None:
    """Decode by the codec; None if it refuses the payload."""
    out = torch.zeros_like(like)
    try:
        with use_backend("cpu"):
            decode_one(codec(Bound.absolute(0.0)), payload, out)
    except CorruptDataError:
        return None
    return out


def assert_same_as_codec(xs: Sequence[Tensor], bounds: Sequence[Bound]) -> list[Tensor]:
    payloads, status = encoded(xs, bounds)
    assert status == [0] * len(xs)
    for one, other in zip(by_codec(xs, bounds), payloads, strict=True):
        assert_bits_equal(one, other)
    values, status = decoded(payloads, [x.shape for x in xs], xs[0].dtype)
    assert status == [0] * len(xs)
    for x, bound, payload, value in zip(xs, bounds, payloads, values, strict=True):
        assert_within_bound(x, value, bound)
        assert_bits_equal(read_by_codec(payload, x), value)
    return payloads


@pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
def test_payloads_of_a_list_are_those_of_the_codec(dtype):
    xs = [
        repeated(150, 20, 4),
        torch.ones(40, 8),
        merging(60, 5),
        repeated(9, 9, 33),
        repeated(400, 60, 1),
        torch.randn(1, 161, generator=torch.Generator().manual_seed(1)),
        torch.zeros(0, 8),
        torch.zeros(3, 0),
    ]
    bounds = [Bound.relative(0.02), Bound.absolute(0.1)] * 4
    if dtype.itemsize == 2:
        # other values often miss the bound after rounding, and are outliers
        xs = [x.round().clamp(-2, 2) for x in xs]
        bounds = [Bound.relative(0.075), Bound.absolute(0.3)] * 4
    payloads = assert_same_as_codec([x.to(dtype) for x in xs], bounds)
    assert [int(payload[MODE]) for payload in payloads] == [CODED] * 6 + [EXACT] * 2


def test_rows_that_differ_less_than_the_bound_are_stored_once():
    merged, apart = assert_same_as_codec(
        [merging(200, 16), repeated(200, 200, 16)], [Bound.absolute(0.1)] * 2
    )
    assert merged.numel() < 500 < apart.numel()


def test_matrices_of_many_tiles_are_coded_like_small_ones():
    # more than one tile of rows, of columns, and of words, in lists of different widths
    xs = [merging(1100, 2), repeated(3, 2, 1100)]
    assert_same_as_codec(xs, [Bound.absolute(0.1)] * 2)


def test_long_lists_have_the_payloads_of_short_ones(monkeypatch):
    monkeypatch.setattr(slots, "SHORT_ROWS", 0)
    xs = [merging(1100, 2), repeated(1300, 700, 4), skewed(1200, 6), torch.ones(3, 4)]
    assert_same_as_codec(xs, [Bound.absolute(0.1)] * 4)


def test_a_short_matrix_leaves_the_marks_and_references_of_longer_ones_alone():
    # the references of the first, which are packed, lie behind the marks of the last
    xs = [repeated(4096, 3500, 4), repeated(40, 5, 2), repeated(33, 9, 1)]
    payloads = assert_same_as_codec(xs, [Bound.absolute(0.1)] * 3)
    assert int(payloads[0][FORM]) == 0


def test_matrices_may_start_anywhere():
    for dtype in (torch.float32, torch.float16):
        x = repeated(60, 9, 16).round().clamp(-2, 2).to(dtype)
        moved = torch.cat([x.new_zeros(1), x.view(-1)])[1:].view(60, 16)
        assert_same_as_codec([x[:40, :3].contiguous()[1:], moved], [Bound.absolute(0.3)] * 2)


def test_an_index_is_coded_where_that_is_smaller():
    xs = [skewed(5600, 46), skewed(1200, 6), repeated(40, 20, 2)]
    payloads = assert_same_as_codec(xs, [Bound.absolute(0.3)] * 3)
    # of 2116 distinct rows, one bit of each reference is stored apart
    assert [payload[FORM : FORM + 2].tolist() for payload in payloads] == [[1, 1], [1, 0], [0, 0]]


def test_what_does_not_vary_or_cannot_be_quantized_is_stored_plainly():
    nan = torch.full((2, 4), torch.nan)
    xs = [torch.full((9, 4), 2.5), torch.full((2, 2), -0.0), repeated(4, 4, 4), nan]
    bounds = [Bound.relative(0.1), Bound.absolute(1e-3), Bound.absolute(0.0), Bound.relative(0.1)]
    payloads = assert_same_as_codec(xs, bounds)
    assert [int(payload[MODE]) for payload in payloads] == [CONSTANT, CONSTANT, EXACT, EXACT]


def test_long_lists_are_planned_in_order(monkeypatch):
    monkeypatch.setattr(rows_plan, "_LANES", 4)
    shapes = [(1, 3), (0, 2), (2, 3), (5, 2), (3, 3), (1, 1), (4, 2), (2, 5), (0, 0), (3, 1)]
    xs = [torch.full(shape, float(k)) for k, shape in enumerate(shapes)]
    assert_same_as_codec(xs, [Bound.absolute(0.1)] * len(xs))


def beyond() -> tuple[list[Tensor], list[Bound]]:
    """Matrices with outliers, with escapes, with a wide alphabet, and constant but for a NaN."""
    special = repeated(40, 10, 8)
    special[3, 2] = torch.inf
    constant = torch.full((30, 4), 2.0)
    constant[4, 1] = torch.nan
    wide = (torch.arange(3000.0) % 600).view(-1, 8)
    xs = [special, repeated(40, 10, 8), wide, constant]
    return xs, [Bound.absolute(0.1), Bound.relative(1e-3), Bound.absolute(0.4), Bound.relative(0.1)]


def test_what_only_the_codec_can_code_is_stored_exactly_and_marked():
    xs, bounds = beyond()
    ordinary = repeated(100, 10, 8)
    payloads, status = encoded([*xs, ordinary], [*bounds, Bound.relative(0.02)])
    assert status == [1, 1, 1, 1, 0]
    assert [int(payload[MODE]) for payload in payloads] == [EXACT] * 4 + [CODED]
    values, status = decoded(payloads[:4], [x.shape for x in xs], torch.float32)
    assert status == [0] * 4
    for x, value in zip(xs, values, strict=True):
        assert_bits_equal(x, value)


def test_payloads_that_only_the_codec_can_decode_are_marked():
    xs, bounds = beyond()
    payloads = by_codec(xs, bounds)
    ordinary = repeated(100, 10, 8)
    last = by_codec([ordinary], [Bound.relative(0.02)])[0]
    _, status = decoded([*payloads, last], [*(x.shape for x in xs), ordinary.shape], torch.float32)
    assert status == [2, 2, 2, 2, 0]


def test_indices_that_are_coded_but_not_by_this_package_are_left_to_the_codec(monkeypatch):
    """Of 64 rows none is, and of 256 none with more than 40 symbols."""
    xs = [repeated(64, 20, 16), repeated(256, 60, 16), repeated(256, 20, 16)]
    bound = Bound.absolute(0.1)
    with monkeypatch.context() as patch, use_backend("reference"):
        patch.setattr(rows_compose, "worth_coding", lambda *numbers: True)
        patch.setattr(rows_compose, "fields_nbytes", lambda count, width: 10**6 * width)
        payloads = [codec(bound).pack_chunk(x) for x in xs]
    assert [int(payload[FORM]) for payload in payloads] == [1, 1, 1]
    _, status = decoded(payloads[1:], [x.shape for x in xs[1:]], torch.float32)
    assert status == [2, 0]
    _, status = decoded(payloads[:1], [xs[0].shape], torch.float32)
    assert status == [2]
    with use_backend("gpu"):
        outs = [torch.zeros_like(x, device=DEVICE) for x in xs]
        decode_list(codec(bound), [payload.to(DEVICE) for payload in payloads], outs)
    for x, payload, out in zip(xs, payloads, outs, strict=True):
        assert_bits_equal(read_by_codec(payload, x), out.cpu())


def test_the_codec_gives_the_same_bytes_and_values_on_the_device():
    xs, bounds = beyond()
    xs = [*xs, repeated(60, 10, 4), torch.zeros(0, 4), repeated(6, 6, 6).view(2, 3, 6)]
    bounds = [*bounds, Bound.relative(0.05), Bound.relative(0.1), Bound.absolute(0.1)]
    with use_backend("gpu"):
        device = [x.to(DEVICE) for x in xs]
        found = [codec(bound).pack_chunk(x) for x, bound in zip(device, bounds, strict=True)]
        together = encode_batch(device, [codec(bounds[0])] * len(device)).payloads()
        outs = [torch.zeros_like(x) for x in device]
        decode_list(codec(bounds[0]), together, outs)
    for one, other in zip(by_codec(xs, bounds), found, strict=True):
        assert_bits_equal(one, other.cpu())
    for x, one, out in zip(xs, by_codec(xs, [bounds[0]] * len(xs)), outs, strict=True):
        assert_bits_equal(read_by_codec(one, x), out.cpu())


def changed_payloads(payload: Tensor) -> Iterator[Tensor]:
    """One bit changed at a time, all over the payload but mostly in its heads, and cut ones."""
    near = range(0, min(72, payload.numel()), 4 if INTERPRETED else 1)
    spread = range(72, payload.numel(), 1 + payload.numel() // (6 if INTERPRETED else 200))
    for place in sorted({*near, *spread, payload.numel() - 1}):
        changed = payload.clone()
        changed[place] ^= 1 << (place * 5 % 8)
        yield changed
    for size in (0, 8, 23, 24, 32, 48, payload.numel() // 2, payload.numel() - 8):
        yield payload[:size]
    yield torch.cat([payload, torch.zeros(8, dtype=torch.uint8)])
    yield torch.cat([payload, torch.ones(8, dtype=torch.uint8)])
    yield torch.full_like(payload, 0xFF)


def assert_refused_like_the_codec(x: Tensor, bound: Bound) -> None:
    (payload,) = by_codec([x], [bound])
    changed = list(changed_payloads(payload))
    # a well-formed one in between shows that each has a state of its own
    payloads = [*changed[: len(changed) // 2], payload, *changed[len(changed) // 2 :]]
    values, status = decoded(payloads, [x.shape] * len(payloads), x.dtype)
    assert 1 in status
    for k, one in enumerate(payloads):
        expected = read_by_codec(one, x)
        # what is left to the codec, it may decode or refuse
        assert status[k] == 2 or (status[k] == 0) == (expected is not None), f"payload {k}"
        if status[k] == 0:
            assert_bits_equal(expected, values[k])
    assert status[len(changed) // 2] == 0


@pytest.mark.parametrize(
    ("x", "bound"),
    [
        pytest.param(repeated(20, 5, 4), Bound.absolute(0.1), id="packed index"),
        pytest.param(skewed(200, 3), Bound.absolute(0.3), id="coded index"),
        pytest.param(torch.ones(9, 5), Bound.relative(0.1), id="constant"),
        pytest.param(repeated(3, 3, 2), Bound.absolute(0.0), id="exact"),
        pytest.param(torch.ones(30, 2), Bound.absolute(0.1), id="a single symbol"),
    ],
)
def test_changed_payloads_are_refused_as_the_codec_refuses_them(x, bound):
    assert_refused_like_the_codec(x, bound)


def test_references_to_rows_that_do_not_exist_are_refused():
    """Five distinct rows take three bits per reference, which could name eight."""
    x = torch.arange(5.0).repeat(4)[:, None].expand(20, 8).contiguous()
    (payload,) = by_codec([x], [Bound.absolute(0.01)])
    # after the header 8 bytes of head, 8 of flags, and 15 references of three bits
    changed = []
    for place in range(24 + 16, 24 + 21):
        changed.append(payload.clone())
        changed[-1][place] = 255
    _, status = decoded([payload, *changed], [x.shape] * 6, x.dtype)
    assert status == [0, 1, 1, 1, 1, 1]
