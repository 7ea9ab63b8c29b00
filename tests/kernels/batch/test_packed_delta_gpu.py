"""Lists of tensors that a GPU predicts and packs have the payloads of the codec ``delta``, in every mode.

With ``TRITON_INTERPRET=1``, as is set without a GPU, the kernels run on CPU tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from tersor.codecs.stream import Delta
from tersor.errors import CorruptDataError
from tersor.kernels.batch.encoded_list import EncodedList, Unwritten, settled
from tersor.kernels.batch.encoders.bitpack import BitpackEncoder
from tersor.kernels.payload.frame import frame_offsets, pack_frame
from tersor.kernels.runtime.op import use_backend
from tersor.raw_bytes import padded
from tersor.types import Bound
from tests import data
from tests.checks import assert_bits_equal
from tests.one_by_one import decode_one
from tests.triton_device import DEVICE, MARKS
from tests.waiting import errors_on_waiting

pytest.importorskip("triton")
from tersor.kernels.batch.gpu import boxes, packed, packed_boxes, packed_decode
from tersor.kernels.batch.gpu.fused_list import FusedList
from tersor.kernels.pack.blocks.gpu import plane_tile

pytestmark = MARKS

BOUNDS = [Bound.absolute(0.0), Bound.absolute(0.1), Bound.relative(0.05)]
INPUTS = ("empty", "scalar", "odd_size", "constant", "nan_and_inf", "all_nan", "huge", "subnormal")


def planned(xs: Sequence[Tensor], bounds: Sequence[Bound], dims: int, block: int = 32) -> FusedList:
    on_device = [x.to(DEVICE) for x in xs]
    made = packed.encode_packed(on_device, bounds, BitpackEncoder(block=block), dims=dims)
    assert isinstance(made.memory, Unwritten)
    return made


def encoded(xs: Sequence[Tensor], bounds: Sequence[Bound], dims: int, block: int) -> list[Tensor]:
    made = planned(xs, bounds, dims, block)
    (known,) = settled([EncodedList(made.sizes, unwritten=made.memory)])
    return [payload.cpu() for payload in known.payloads()]


def by_reference(
    xs: Sequence[Tensor], bounds: Sequence[Bound], dims: int, block: int
) -> list[Tensor]:
    with use_backend("reference"):
        pairs = zip(xs, bounds, strict=True)
        return [Delta(bound=b, lorenzo=dims, block=block).pack_chunk(x) for x, b in pairs]


def decoded(
    payloads: Sequence[Tensor], xs: Sequence[Tensor], dims: int, block: int
) -> tuple[list, list[int]]:
    """Decode payloads of ``delta`` on the device; return tensors and states."""
    buffer = pack_frame([payload.to(DEVICE) for payload in payloads])
    sizes = torch.tensor([payload.numel() for payload in payloads])
    outs = [torch.full_like(x, 7.0, device=DEVICE) for x in xs]
    decode = packed_decode.decode_packed if dims < 2 else packed_boxes.decode_shaped
    status = decode(
        buffer, frame_offsets(sizes)[:-1].to(DEVICE), sizes.to(DEVICE), outs,
        BitpackEncoder(block=block), dims=dims,
    )  # fmt: skip
    return [out.cpu() for out in outs], status.tolist()


def read_by_reference(payload: Tensor, like: Tensor, dims: int, block: int) -> Tensor | None:
    """Decode by the codec; None if it refuses the payload."""
    out = torch.zeros_like(like)
    try:
        with use_backend("reference"):
            decode_one(Delta(bound=Bound.absolute(0.0), lorenzo=dims, block=block), payload, out)
    except CorruptDataError:
        return None
    return out


def assert_same_as_codec(
    xs: Sequence[Tensor], bounds: Sequence[Bound], dims: int, block: int = 32
) -> None:
    found = encoded(xs, bounds, dims, block)
    for one, other in zip(by_reference(xs, bounds, dims, block), found, strict=True):
        assert_bits_equal(one, other)
    assert_decodes(found, xs, dims, block)


def assert_decodes(
    payloads: Sequence[Tensor], xs: Sequence[Tensor], dims: int, block: int = 32
) -> None:
    values, status = decoded(payloads, xs, dims, block)
    assert status == [0] * len(xs)
    for x, payload, value in zip(xs, payloads, values, strict=True):
        assert_bits_equal(read_by_reference(payload, x, dims, block), value)


@pytest.mark.parametrize("grouping", ["small lists apart", "all lists alike"])
def test_changed_payloads_are_refused_as_the_codec_refuses_them(grouping, monkeypatch):
    if grouping == "all lists alike":
        monkeypatch.setattr(packed_decode, "are_small", lambda numels: False)
    x = smooth(2100)
    x[3] = float("nan")
    (payload,) = by_reference([x], [Bound.absolute(0.01)], 1, 32)
    changed = []
    for place in range(0, payload.numel(), 1 + payload.numel() // 60):
        changed.append(payload.clone())
        changed[-1][place] ^= 1 << (place * 5 % 8)
    changed += [payload[:size] for size in (0, 23, payload.numel() // 2, payload.numel() - 8)]
    payloads = [part for one in changed for part in (one, payload)]
    values, status = decoded(payloads, [x] * len(payloads), 1, 32)
    assert any(status[::2])
    for one, value, state in zip(payloads, values, status, strict=True):
        expected = read_by_reference(one, x, 1, 32)
        assert (state == 0) == (expected is not None)
        if expected is not None:
            assert_bits_equal(expected, value)


@pytest.mark.parametrize("dims", [2, 3])
def test_changed_payloads_of_more_axes_are_refused_as_the_codec_refuses_them(dims):
    x = smooth(3, 18, 66)
    x[0, 1, 2] = float("nan")
    (payload,) = by_reference([x], [Bound.absolute(0.01)], dims, 32)
    changed = []
    for place in range(0, payload.numel(), 1 + payload.numel() // 24):
        changed.append(payload.clone())
        changed[-1][place] ^= 1 << (place * 5 % 8)
    changed += [payload[:size] for size in (0, 23, payload.numel() // 2, payload.numel() - 8)]
    payloads = [*changed, payload]
    values, status = decoded(payloads, [x] * len(payloads), dims, 32)
    assert any(status)
    for one, value, state in zip(payloads, values, status, strict=True):
        expected = read_by_reference(one, x, dims, 32)
        assert (state == 0) == (expected is not None)
        if expected is not None:
            assert_bits_equal(expected, value)


BOXES = {
    "lines of whole fours": [(9, 18, 132), (18, 68), (2, 3, 64)],
    "other lines": [(9, 17, 65), (18, 129), (33, 1, 3), (2, 9, 1, 1), (5, 1, 1), (40,)],
    "narrow": [(17, 33, 5), (3, 11, 16), (2, 50, 2, 1)],
}


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("name", BOXES)
def test_boxes_add_up_what_lies_before_them_on_every_axis(name, dims):
    xs = [smooth(*shape) for shape in BOXES[name]]
    xs[0].view(-1)[::100] = float("inf")
    assert_decodes(by_reference(xs, [Bound.absolute(0.003)] * len(xs), dims, 32), xs, dims)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_fields_of_more_than_8_bits_are_read_one_by_one(dtype):
    xs = [(smooth(*shape) * 100).to(dtype) for shape in ((9, 17, 68), (3, 21, 69), (2, 18, 70))]
    for some in (xs[:1], xs):
        payloads = by_reference(some, [Bound.absolute(0.01)] * len(some), 3, 64)
        assert_decodes(payloads, some, 3, 64)


def test_long_lines_of_sums_and_deep_boxes(monkeypatch):
    # shapes of no other test, as tables are kept
    monkeypatch.setattr(boxes, "_MAX_SHORT_LINE", 3)
    monkeypatch.setattr(boxes, "_LARGE_LIST", 1)
    shapes = (34, 17, 67), (66, 3, 66), (2, 2000)
    xs = [smooth(*shape) for shape in shapes]
    assert_decodes(by_reference(xs, [Bound.absolute(0.003)] * 3, 3, 32), xs, 3)
    whole = tuple((1, *(1, *shape)[-3:]) for shape in shapes)
    table = boxes.box_table(whole, xs[0].to(DEVICE).device)
    assert {step.is_long for step in table.steps} == {False, True}
    assert table.box.planes == 32


def test_sums_take_half_a_byte_per_value_of_a_large_tensor():
    table = boxes.box_table(((1, 256, 512, 512),), torch.device("meta"))
    index_nbytes = 2 * (1 << 26) // 32
    assert 4 * table.num_sums + index_nbytes <= 0.13 * 4 * (1 << 26)


def test_codes_wrap_where_they_are_carried_from_tile_to_tile():
    # every tile begins where the one before it ended, far from zero, and tensors do not meet
    x = (torch.arange(5000, dtype=torch.float64) % 3 - 1) * (2**30 - 1)
    xs = [x, torch.arange(3000, dtype=torch.float64) * 1e5, x[:1025].clone()]
    assert_same_as_codec(xs, [Bound.absolute(0.5)] * 3, 1)


@pytest.mark.parametrize(
    ("dtype", "dims", "block"),
    [
        (torch.float32, 1, 32),
        (torch.float32, 2, 64),
        (torch.float32, 3, 32),
        (torch.float64, 2, 32),
        (torch.float16, 3, 32),
        (torch.bfloat16, 1, 64),
    ],
)
def test_payloads_of_a_list_are_those_of_the_codec(dtype, dims, block):
    inputs = [data.make(name, dtype).contiguous() for name in INPUTS]
    xs = [x for x in inputs for _ in BOUNDS]
    assert_same_as_codec(xs, BOUNDS * len(inputs), dims, block)


def smooth(*shape: int) -> Tensor:
    """Return values that differ from all neighbours, and along each axis by another amount."""
    axes = [torch.linspace(0, 3 + k, size) for k, size in enumerate(shape)]
    return sum(grid.sin() * (k + 1) for k, grid in enumerate(torch.meshgrid(*axes, indexing="ij")))


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_of_any_shape_predict_along_their_last_axes(dims, dtype):
    # lines that end within tiles, planes that do, and leading axes that do not predict
    shapes = [
        (2100,),
        (3, 1, 700),
        (7, 301),
        (2, 5, 11, 13),
        (1030, 2),
        (4, 9, 33),
        (2, 2, 2, 3, 5),
    ]
    xs = [smooth(*shape).to(dtype) for shape in shapes]
    assert_same_as_codec(xs, [Bound.absolute(0.01)] * len(xs), dims)


def test_tensors_without_values_may_have_any_shape():
    xs = [torch.zeros(0, 2**33), torch.zeros(3, 0, 2), smooth(30, 41), torch.zeros(2**33, 0)]
    assert_same_as_codec(xs, [Bound.absolute(0.01)] * 4, 2)


def test_residuals_that_do_not_fit_32_bits_wrap():
    x = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(700) * (2**30 - 1)
    assert_same_as_codec([x.view(2, -1)], [Bound.absolute(0.5)], 2)


@pytest.mark.parametrize("dims", [2, 3])
def test_programs_take_turns_where_there_are_more_tiles_than_programs(dims, monkeypatch):
    monkeypatch.setattr(packed, "_MIN_PROGRAMS", 1)
    monkeypatch.setattr(packed, "_MAX_PROGRAMS", 2)
    xs = [smooth(5, 31, 61), smooth(1000), smooth(3, 2048)]
    assert_same_as_codec(xs, [Bound.relative(1e-3)] * 3, dims)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_without_a_code_predict_across_lanes_and_tiles(dtype):
    # an outlier alone, and one that is the last of a lane, of a four, and of a tile
    places = [[], [31], [35], [1023], [1024], [0, 2047], [500, 501, 502]]
    xs = [(smooth(2500) * 10).to(dtype) for _ in places]
    for x, some in zip(xs, places, strict=True):
        x[some] = float("nan")
    # codes that a fast path does not take: all values of a tile, and the one before it
    far = torch.zeros(16 * 1024)
    far[1023::2048] = 6e6 + 1000 * torch.arange(8)
    xs += [torch.linspace(0, 6e6, 3000), far]
    xs = [x.to(dtype) for x in xs]
    assert_same_as_codec(xs, [Bound.absolute(0.5)] * len(xs), 1)


def test_a_value_that_decodes_too_far_away_predicts_the_next_tile():
    # decoded values are rounded to multiples of 2, so that some are 2 away
    x = torch.zeros(16 * 1024)
    x[1023::2048] = 256 + 26 * torch.arange(8)
    assert_same_as_codec([x.to(torch.bfloat16)], [Bound.absolute(1.2)], 1)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_lines_of_whole_lanes_predict_across_lines_and_planes(dims, dtype):
    shapes = [(3, 5, 96), (2, 2, 7, 32), (40, 64), (2, 2, 1024), (1, 9, 128)]
    xs = [(smooth(*shape) + 1).to(dtype) for shape in shapes]
    # with lines of a tile each, one is predicted by the outlier through the line above, behind, or both
    for x, place in zip(xs, (95, 479, 1023, 5, 700), strict=True):
        x.view(-1)[place] = float("nan")
    xs += [smooth(2, 20, 64).to(dtype), torch.full((3, 32, 32), 2.0).to(dtype)]
    assert_same_as_codec(xs, [Bound.absolute(0.01)] * len(xs), dims)


PLANES = {
    "a plane ends within a tile": (3, 40, 32),
    "no power of two": (4, 13, 96),
    "more axes than predict": (2, 3, 35, 32),
    "lines longer than a tile": (3, 2, 1056),
    "lines too long for a product": (2, 2, 32800),
}
SLOW = "lines too long for a product"
"""More than a minute in the interpreter."""


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=pytest.mark.gpu if one == SLOW else ()) for one in PLANES]
)
def test_whole_tiles_of_planes_know_their_neighbours(name, dims):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(PLANES[name], generator=generator)
    assert_same_as_codec([x], [Bound.absolute(0.1)], dims)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("place", [0, 1023, 1024 + 64, 2 * 2560 - 1])
def test_an_outlier_that_predicts_values_of_other_tiles_counts_as_zero(place, dims):
    x = torch.randn((4, 40, 64), generator=torch.Generator().manual_seed(6)) + 50
    x.view(-1)[place] = float("nan")
    assert_same_as_codec([x], [Bound.absolute(0.1)], dims)


@pytest.mark.parametrize(("value", "varying"), [(0.0, [0, 1, 0, 0]), (-2.0, [0, 0, 0, 0])])
def test_planes_of_one_value_do_not_vary_for_want_of_neighbours(value, varying):
    x = torch.full((3, 40, 32), -2.0)
    x[1, 7, 3] = value
    assert_same_as_codec([x], [Bound.absolute(0.1)], 3)
    _, _, ends, _ = planned([x], [Bound.absolute(0.1)], 3).memory.state
    assert ends[7:].diff().tolist() == varying


def test_a_product_divides_places_in_a_tile_by_the_length_of_lines():
    widths = np.arange(32, plane_tile._LONG.value, 32, dtype=np.int64)
    inverses = 0xFFFFFFFF // widths + 1
    # the last place of a line, and the first of the next, wherever a tile starts in a line
    for line in range(1, 34):
        for offset in (line * widths - 1, line * widths):
            inside = offset < widths + 1024
            found = (offset * inverses) >> 32
            assert (found == offset // widths)[inside].all()


def test_a_tensor_that_does_not_start_at_16_bytes_is_encoded_alike():
    x = smooth(50, 61).view(-1)[1:2441]
    assert_same_as_codec([x], [Bound.absolute(0.01)], 1)


@pytest.mark.parametrize("dims", [0, 1])
def test_what_does_not_fit_is_left_out_and_written_when_sizes_are_known(dims, monkeypatch):
    monkeypatch.setattr(packed, "are_small", lambda numels: False)
    xs = [smooth(40, 60), torch.randn(3000), smooth(2000)]
    bounds = [Bound.absolute(1e-3)] * 3
    made = planned(xs, bounds, dims)
    sizes = [padded(size) for size in made.sizes.tolist()]
    # one byte too few for the second payload: the first is there, and memory behind it is not touched
    listed = EncodedList(made.sizes, unwritten=made.memory).written(sizes[0] + sizes[1] - 1)
    assert listed.buffer.numel() == sizes[0] + sizes[1] - 1
    (known,) = settled([listed])
    assert known.buffer.numel() == sum(sizes)
    assert_bits_equal(known.buffer[: sizes[0]], listed.buffer[: sizes[0]])
    whole = made.memory.written(made.memory.capacity)
    assert_bits_equal(known.buffer, whole[: sum(sizes)])


CPU = torch.device("cpu")


def test_memory_for_residuals_is_a_sixteenth_of_a_large_list():
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x = torch.empty(1 << 26, dtype=dtype, device="meta")
        num_tiles = x.numel() // 1024
        one = packed._List(
            (x.numel(),), dtype, CPU, True, tiles(num_tiles), tiles(num_tiles // 4), 32, 2, None
        )
        count, scratch = one.writers()
        assert scratch.nbytes == 4096 * count
        assert x.nbytes // 32 <= scratch.nbytes <= x.nbytes // 16


def tiles(count: int) -> packed.TileTable:
    return packed.TileTable(torch.empty(0), torch.empty(0), torch.empty(0), count)


@pytest.mark.gpu
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(200, 300, 517), (256, 256, 256)])
def test_large_fields_have_the_payloads_and_values_of_the_cpu(shape, dtype, dims):
    x = smooth(*shape).to(dtype)
    codec = Delta(bound=Bound.relative(1e-3), lorenzo=dims)
    x.view(-1)[12345] = float("nan")
    payload = codec.pack_chunk(x.cuda())
    expected = codec.pack_chunk(x)
    assert_bits_equal(payload.cpu(), expected)
    found, out = torch.empty_like(x), torch.empty_like(x, device="cuda")
    decode_one(codec, expected, found)
    decode_one(codec, payload, out)
    assert_bits_equal(out.cpu(), found)


@pytest.mark.gpu
@pytest.mark.parametrize("dims", [2, 3])
def test_lists_of_more_axes_are_decoded_without_waiting_and_in_a_graph(dims):
    xs = [smooth(20, 30, 57).cuda(), smooth(70_000).cuda(), smooth(90, 128).cuda()]
    outs, encoder = [torch.empty_like(x) for x in xs], BitpackEncoder()
    payloads = [
        x.cuda() for x in by_reference([x.cpu() for x in xs], [Bound.absolute(1e-3)] * 3, dims, 32)
    ]
    sizes = torch.tensor([payload.numel() for payload in payloads])
    places = pack_frame(payloads), frame_offsets(sizes)[:-1].cuda(), sizes.cuda()

    def step() -> Tensor:
        return packed_boxes.decode_shaped(*places, outs, encoder, dims=dims)

    expected = [out.clone() for out in (step(), *outs)]
    with errors_on_waiting():
        step()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        status = step()
    for out in outs:
        out.zero_()
    graph.replay()
    for one, other in zip(expected, (status, *outs), strict=True):
        assert_bits_equal(one.cpu(), other.cpu())
    assert status.tolist() == [0, 0, 0]


@pytest.mark.gpu
def test_decoding_three_axes_takes_an_eighth_of_the_output():
    x = torch.randn(256, 256, 512, device="cuda").cumsum(2)
    codec, out = Delta(bound=Bound.relative(1e-3), lorenzo=3), torch.empty_like(x)
    payload = codec.pack_chunk(x)
    decode_one(codec, payload, out)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    decode_one(codec, payload, out)
    assert torch.cuda.max_memory_allocated() - before <= 0.15 * x.nbytes
