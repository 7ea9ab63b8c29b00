"""Lists of tensors that a GPU predicts and packs have the payloads of the codec ``delta``, in every mode.

With ``TRITON_INTERPRET=1``, as is set without a GPU, the kernels run on CPU tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tersor.codecs.stream import Delta
from tersor.kernels.batch.encoded_list import EncodedList, Unwritten, settled
from tersor.kernels.batch.encoders.bitpack import BitpackEncoder
from tersor.kernels.runtime.op import use_backend
from tersor.raw_bytes import padded
from tersor.types import Bound
from tests import data
from tests.checks import assert_bits_equal
from tests.triton_device import DEVICE, MARKS

pytest.importorskip("triton")
from tersor.kernels.batch.gpu import flat
from tersor.kernels.batch.gpu.fused_list import FusedList

pytestmark = MARKS

BOUNDS = [Bound.absolute(0.0), Bound.absolute(0.1), Bound.relative(0.05)]
INPUTS = ("empty", "scalar", "odd_size", "constant", "nan_and_inf", "all_nan", "huge", "subnormal")


def planned(xs: Sequence[Tensor], bounds: Sequence[Bound], dims: int, block: int = 32) -> FusedList:
    on_device = [x.to(DEVICE) for x in xs]
    made = flat.encode_packed(on_device, bounds, BitpackEncoder(block=block), dims=dims)
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


def assert_same_as_codec(
    xs: Sequence[Tensor], bounds: Sequence[Bound], dims: int, block: int = 32
) -> None:
    found = encoded(xs, bounds, dims, block)
    for one, other in zip(by_reference(xs, bounds, dims, block), found, strict=True):
        assert_bits_equal(one, other)


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


def test_residuals_that_do_not_fit_32_bits_wrap():
    x = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(700) * (2**30 - 1)
    assert_same_as_codec([x.view(2, -1)], [Bound.absolute(0.5)], 2)


@pytest.mark.parametrize("dims", [1, 3])
def test_programs_take_turns_where_there_are_more_tiles_than_programs(dims, monkeypatch):
    monkeypatch.setattr(flat, "_MIN_PROGRAMS", 1)
    monkeypatch.setattr(flat, "_MAX_PROGRAMS", 2)
    xs = [smooth(5, 31, 61), smooth(1000), smooth(3, 2048)]
    assert_same_as_codec(xs, [Bound.relative(1e-3)] * 3, dims)


def test_a_tensor_that_does_not_start_at_16_bytes_is_encoded_alike():
    x = smooth(50, 61).view(-1)[1:2441]
    assert_same_as_codec([x], [Bound.absolute(0.01)], 1)


@pytest.mark.parametrize("dims", [0, 1])
def test_what_does_not_fit_is_left_out_and_written_when_sizes_are_known(dims, monkeypatch):
    monkeypatch.setattr(flat, "are_small", lambda numels: False)
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
    whole = made.memory.write(made.memory.capacity)
    assert_bits_equal(known.buffer, whole[: sum(sizes)])


def test_memory_for_residuals_is_an_eighth_of_a_large_list():
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        x = torch.empty(1 << 26, dtype=dtype, device="meta")
        num_tiles = x.numel() // 1024
        one = flat._List(
            [x], torch.empty(0), True, tiles(num_tiles), tiles(num_tiles // 4), 32, 1, None
        )
        count, scratch = one.writers()
        assert scratch.nbytes == 4096 * count
        assert x.nbytes // 32 <= scratch.nbytes <= x.nbytes // 8


def tiles(count: int) -> flat.TileTable:
    return flat.TileTable(torch.empty(0), torch.empty(0), torch.empty(0), count)
