"""Lists predicted and encoded on the device have the payloads of the codec ``ans`` with ``lorenzo``."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tersor.codecs.stream import Ans
from tersor.errors import CorruptDataError
from tersor.kernels.batch.encoders.entropy import AnsEncoder
from tersor.kernels.payload.frame import frame_offsets, pack_frame
from tersor.kernels.payload.layout import CODED, CONSTANT, EXACT
from tersor.kernels.runtime.op import use_backend
from tersor.types import FLOAT_DTYPES, Bound
from tests.checks import assert_bits_equal
from tests.codecs.variants import NARROW_TABLE, WIDE_TABLE
from tests.one_by_one import decode_one
from tests.triton_device import DEVICE, MARKS

pytest.importorskip("triton")
from tersor.kernels.batch.gpu import ans, ans_decode, ans_plan, ans_restore
from tests.kernels.batch.test_ans_gpu import written
from tests.kernels.batch.test_packed_gpu import changed_payloads, starts_of

pytestmark = MARKS

FINE = Bound.absolute(0.05)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    # so that tensors of a few hundred values take several programs and steps
    monkeypatch.setattr(ans_restore, "TILE", 128)
    monkeypatch.setattr(ans_plan, "_TILES_PER_STEP", 2)


def smooth(*shape: int) -> Tensor:
    """A sum of waves along every axis."""
    axes = torch.meshgrid(*[torch.arange(size) / 7.0 for size in shape], indexing="ij")
    return sum((axis + k).sin() for k, axis in enumerate(axes))


def encoded(
    xs: Sequence[Tensor],
    bounds: Sequence[Bound],
    dims: int,
    table: tuple[int, ...] | None = None,
    are_wide: bool = False,
) -> tuple[list[Tensor], list[int]]:
    """Encode on the device; return payloads and what is left to a second pass."""
    on_device = [x.to(DEVICE) for x in xs]
    encoder = AnsEncoder(frequencies=table)
    made = ans.encode_ans(on_device, bounds, encoder, are_wide=are_wide, dims=dims)
    sizes, buffer = made.sizes.tolist(), written(made)
    pairs = zip(starts_of(sizes), sizes, strict=True)
    needed = [0] * len(xs) if made.needed is None else made.needed.tolist()
    return [buffer[start : start + size].cpu() for start, size in pairs], needed


def decoded(
    payloads: Sequence[Tensor], xs: Sequence[Tensor], dims: int, table: tuple[int, ...] | None
) -> tuple[list[Tensor], list[int]]:
    buffer = pack_frame([payload.to(DEVICE) for payload in payloads])
    sizes = torch.tensor([payload.numel() for payload in payloads])
    outs = [torch.full_like(x, 7.0, device=DEVICE) for x in xs]
    status = ans_decode.decode_ans(
        buffer, frame_offsets(sizes)[:-1].to(DEVICE), sizes.to(DEVICE), outs,
        AnsEncoder(frequencies=table), dims=dims,
    )  # fmt: skip
    return [out.cpu() for out in outs], status.tolist()


def read_by_reference(payload: Tensor, like: Tensor, codec: Ans) -> Tensor | None:
    """Decode by the codec; None if it refuses the payload."""
    out = torch.zeros_like(like)
    try:
        with use_backend("reference"):
            decode_one(codec, payload, out)
    except CorruptDataError:
        return None
    return out


def assert_same_as_codec(
    xs: Sequence[Tensor],
    bounds: Sequence[Bound],
    dims: int,
    table: tuple[int, ...] | None = None,
    are_wide: bool = False,
) -> list[Tensor]:
    payloads, needed = encoded(xs, bounds, dims, table, are_wide)
    assert needed == [0] * len(xs)
    codecs = [Ans(bound=bound, lorenzo=dims, frequencies=table) for bound in bounds]
    with use_backend("reference"):
        for x, codec, payload in zip(xs, codecs, payloads, strict=True):
            assert_bits_equal(codec.pack_chunk(x), payload)
    values, status = decoded(payloads, xs, dims, table)
    assert status == [0] * len(xs)
    for x, codec, payload, value in zip(xs, codecs, payloads, values, strict=True):
        assert_bits_equal(read_by_reference(payload, x, codec), value)
    return payloads


def shaped(dtype: torch.dtype) -> list[Tensor]:
    """Tensors of one to four axes, of all modes, with and without outliers."""
    odd = smooth(3, 7, 9)
    odd[1, 2, 3], odd[2, 6, 8] = torch.nan, torch.inf
    xs = [smooth(300), odd, smooth(2, 3, 5, 17), smooth(6, 1, 9), smooth(5, 1, 1), smooth(1)[0]]
    xs += [torch.zeros(0, 4), torch.full((4, 9), 2.5), torch.full((3, 3), torch.nan)]
    return [x.to(dtype) for x in xs]


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_payloads_of_residuals_are_those_of_the_codec(dtype, dims):
    xs = shaped(dtype)
    bounds = [Bound.relative(0.02) if k % 2 else FINE for k in range(len(xs))]
    payloads = assert_same_as_codec(xs, bounds, dims)
    assert {int(payload[0]) for payload in payloads} == {CODED, EXACT, CONSTANT}


@pytest.mark.parametrize(
    ("dims", "shape"), [(1, (1100,)), (2, (2, 40, 32)), (3, (2, 33, 32))], ids=["1", "2", "3"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whole_tiles_in_lines_and_planes_are_predicted_alike(dtype, dims, shape):
    x = smooth(*shape).to(dtype)
    with_outlier = x.clone()
    with_outlier.view(-1)[500] = torch.nan
    assert_same_as_codec([x, with_outlier], [FINE] * 2, dims)


@pytest.mark.parametrize("table", [NARROW_TABLE, WIDE_TABLE], ids=["narrow", "wide"])
@pytest.mark.parametrize("dims", [1, 3])
def test_residuals_escape_a_static_table(dims, table):
    x = smooth(2, 9, 20)
    x[1, 3, 3] = 40.0
    whole = smooth(1100)
    whole[700] = -40.0
    payloads = assert_same_as_codec([x, whole], [FINE] * 2, dims, table)
    payloads += assert_same_as_codec([x.double()], [FINE], dims, table)
    assert all(int(payload[24 + 8]) for payload in payloads), "no escapes"


@pytest.mark.parametrize("dims", [1, 2])
def test_wide_alphabets_of_residuals(dims, monkeypatch):
    monkeypatch.setattr(ans_plan, "LEAST_WIDE", 1)
    few = smooth(9, 40) * 10
    few[4, 4], few[7, 7] = 60.0, -60.0
    many = torch.randn(20, 70, generator=torch.Generator().manual_seed(3)) * 20
    payloads = assert_same_as_codec([few, many], [FINE, FINE], dims, are_wide=True)
    assert any(int(payload[24 + 8]) for payload in payloads), "no escapes"
    assert any(int(payload[24 + 5]) for payload in payloads), "no wide alphabet"


def test_residuals_that_span_too_much_are_left_to_a_second_pass():
    x = smooth(300) * 100
    (payload,), needed = encoded([x], [FINE], 1)
    assert needed == [1]
    assert int(payload[0]) == EXACT


@pytest.mark.parametrize("dims", [1, 2])
def test_changed_payloads_are_refused_as_the_codec_refuses_them(dims):
    x = smooth(6, 20)
    x[3, 3] = torch.nan
    (payload,), _ = encoded([x], [FINE], dims)
    changed = list(changed_payloads(payload))
    # well-formed ones in between show that each has a state of its own
    payloads = [part for one in changed for part in (one, payload)]
    values, status = decoded(payloads, [x] * len(payloads), dims, None)
    codec = Ans(bound=FINE, lorenzo=dims)
    original = read_by_reference(payload, x, codec)
    for k, one in enumerate(payloads):
        expected = original if k % 2 else read_by_reference(one, x, codec)
        assert (status[k] == 0) == (expected is not None), f"payload {k}"
        if expected is not None:
            assert_bits_equal(expected, values[k])
