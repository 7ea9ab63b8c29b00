"""More than 256 codes, and codes that escape, in lists of ``ans`` on the device.

With ``TRITON_INTERPRET=1``, as is set without a GPU, the kernels run on CPU tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tersor import encode_batch
from tersor.codecs.stream import Ans
from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.batch.encoders.entropy import AnsEncoder
from tersor.kernels.entropy.symbols import body as symbols_body
from tersor.kernels.payload.layout import CODED, EXACT, HEADER
from tersor.kernels.quantize.grid import SHRINK
from tersor.kernels.runtime.op import use_backend
from tersor.types import FLOAT_DTYPES, Bound
from tests.checks import assert_bits_equal
from tests.one_by_one import decode_one
from tests.triton_device import DEVICE, INTERPRETED, MARKS
from tests.waiting import errors_on_waiting

pytest.importorskip("triton")
from tersor.kernels.batch.gpu import ans, ans_decode, ans_plan, ans_wide, lists
from tersor.kernels.batch.gpu.fused_list import FusedList
from tests.kernels.batch.test_ans_gpu import (
    _small_tiles,  # noqa: F401 - a fixture
    by_reference,
    decoded,
    encoded,
    read_by_reference,
    written,
)
from tests.kernels.batch.test_packed_gpu import changed_payloads, starts_of

pytestmark = MARKS

LEAST_WIDE = 1200
NUM_VALUES = 2000 if INTERPRETED else 20_000


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ans_plan, "LEAST_WIDE", LEAST_WIDE)


def spanning(num_codes: int, numel: int = NUM_VALUES, seed: int = 0) -> Tensor:
    """Return float64 values whose codes within ``HALF`` spread over a span.

    A sixth of them lie at each of its ends, so that no window around the middle escapes few.
    """
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(num_codes, (numel,), generator=generator)
    codes[::6], codes[1::6] = 0, num_codes - 1
    return (codes - num_codes // 2).double() * SHRINK


def tailed(tail: float, num_far: int, numel: int = NUM_VALUES) -> Tensor:
    """Return float64 values near 0 but for a few, which lie ``tail`` away on either side."""
    x = torch.randn(numel, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * 9
    far = torch.arange(num_far)
    x[far * (numel // num_far)] = (tail + far).double() * (1 - far % 2 * 2)
    return x


def read_by(codec: Ans, payload: Tensor, like: Tensor) -> Tensor:
    """Decode a payload on the CPU."""
    out = torch.empty_like(like)
    decode_one(codec, payload, out)
    return out


def head_of(payload: Tensor) -> tuple[int, int]:
    """Return alphabet and number of escapes of a coded payload."""
    _, alphabet, num_escapes, _ = symbols_body.HEADER.unpack(
        bytes(payload[HEADER.size : HEADER.size + symbols_body.HEADER.size].tolist())
    )
    return alphabet, num_escapes


HALF = Bound.absolute(0.5)
FORMS = {
    "255 codes": spanning(255),
    "256 codes": spanning(256),
    "257 codes": spanning(257),
    "1000 codes": spanning(1000),
    "4096 codes": spanning(4096),
    "4097 codes": spanning(4097),
    "narrow with escapes": tailed(900.0, 10),
    "narrow with far escapes": tailed(4e6, 10),
}


def test_every_form_of_a_body_is_decoded():
    xs = list(FORMS.values())
    payloads = by_reference(xs, [HALF] * len(xs))
    assert all(int(payload[0]) == CODED for payload in payloads)
    heads = dict(zip(FORMS, map(head_of, payloads), strict=True))
    assert [heads[f"{n} codes"] for n in (255, 256, 257, 1000, 4096)] == [
        (n, 0) for n in (255, 256, 257, 1000, 4096)
    ]
    assert heads["4097 codes"][0] == 4096
    assert heads["4097 codes"][1] > 0
    assert heads["narrow with escapes"] == heads["narrow with far escapes"] == (256, 10)
    values, status = decoded(payloads, [x.shape for x in xs], torch.float64)
    assert status == [0] * len(xs)
    for x, payload, value in zip(xs, payloads, values, strict=True):
        assert_bits_equal(read_by_reference(payload, x), value)


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_wide_payloads_are_decoded_between_all_others(dtype):
    noise = torch.randn(90, generator=torch.Generator().manual_seed(7))
    wide = spanning(1000)
    wide[17], wide[600] = torch.nan, torch.inf
    xs = [
        noise, wide, torch.zeros(0), torch.full((800,), 2.5), spanning(300, LEAST_WIDE - 1),
        tailed(900.0, 10), torch.full((7,), torch.nan), spanning(257, 1500, 1), noise * 1e30,
    ]  # fmt: skip
    xs = [x.to(dtype) for x in xs]
    payloads = by_reference(xs, [HALF] * len(xs))
    values, status = decoded(payloads, [x.shape for x in xs], dtype)
    small = head_of(payloads[4])[0] > 256
    assert status == [0, 0, 0, 0, ans_decode.UNKNOWN.value * small, 0, 0, 0, 0]
    for k, (x, payload, value) in enumerate(zip(xs, payloads, values, strict=True)):
        if status[k] == 0:
            assert_bits_equal(read_by_reference(payload, x), value)


@pytest.mark.parametrize(
    ("name", "first"), [("1000 codes", 0), ("4097 codes", 1), ("narrow with escapes", 2)]
)
def test_changed_payloads_are_refused_as_the_codec_refuses_them(name, first):
    x = FORMS[name]
    (payload,) = by_reference([x], [HALF])
    # the interpreter takes a tenth of a second for each: the three share the places among them
    some = slice(first, None, 3) if INTERPRETED else slice(None)
    payloads = [*list(changed_payloads(payload))[some], payload]
    values, status = decoded(payloads, [x.shape] * len(payloads), x.dtype)
    assert any(status)
    assert status[-1] == 0
    for k, one in enumerate(payloads):
        expected = read_by_reference(one, x)
        assert (status[k] == 0) == (expected is not None), f"payload {k}"
        if expected is not None:
            assert_bits_equal(expected, values[k])


@pytest.mark.parametrize("positions", [[5, 5], [9, 4], [0, NUM_VALUES], [0, 2**32 - 1]])
def test_escapes_out_of_order_or_range_are_refused(positions):
    x = tailed(900.0, 2)
    (payload,) = by_reference([x], [HALF])
    assert head_of(payload) == (256, 2)
    start = HEADER.size + symbols_body.HEADER.size
    changed = payload.clone()
    changed[start : start + 8].view(torch.int32).copy_(torch.tensor(positions).to(torch.int32))
    assert read_by_reference(changed, x) is None
    _, status = decoded([payload, changed], [x.shape] * 2, x.dtype)
    assert status == [0, ans_decode.MALFORMED.value]


@pytest.mark.parametrize("name", ["255 codes", "1000 codes", "narrow with escapes"])
def test_a_body_with_bytes_behind_it_is_refused(name):
    x = FORMS[name]
    (payload,) = by_reference([x], [HALF])
    longer = torch.cat([payload, torch.zeros(8, dtype=torch.uint8)])
    longer[16:24].view(torch.int64).add_(8)
    assert read_by_reference(longer, x) is None
    _, status = decoded([payload, longer], [x.shape] * 2, x.dtype)
    assert status == [0, ans_decode.MALFORMED.value]


@pytest.fixture
def _large_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let large tensors be coded in int16 whatever their bound is."""

    def all_large(numels: Sequence[int], bounds: Sequence[Bound], dims: int) -> frozenset[int]:
        del bounds, dims
        return frozenset(ans_plan.large_tensors(numels))

    monkeypatch.setattr(ans, "wide_tensors", all_large)


def assert_same_as_codec(xs: Sequence[Tensor], bounds: Sequence[Bound], left: set[int]) -> None:
    """Compare payloads with the codec's, but for those ``left`` to a second pass."""
    payloads, status = encoded(xs, bounds)
    assert {k for k, state in enumerate(status) if state} == left
    for k, (one, other) in enumerate(zip(by_reference(xs, bounds), payloads, strict=True)):
        if k in left:
            assert int(other[0]) == EXACT
        else:
            assert_bits_equal(one, other)


@pytest.mark.usefixtures("_large_is_wide")
def test_payloads_have_the_windows_of_the_codec():
    xs = list(FORMS.values())
    left = {k for k, x in enumerate(xs) if float(x.max() - x.min()) > 4096 * SHRINK - 0.5}
    assert [list(FORMS)[k] for k in left] == ["4097 codes", "narrow with far escapes"]
    assert_same_as_codec(xs, [HALF] * len(xs), left)


@pytest.mark.usefixtures("_large_is_wide")
@pytest.mark.parametrize("num_escapes", [255, 256, 257])
def test_a_narrow_window_is_chosen_up_to_as_many_escapes_as_the_codec_takes(num_escapes):
    x = tailed(900.0, num_escapes)
    (payload,) = by_reference([x], [HALF])
    assert (head_of(payload)[0] == 256) == (num_escapes <= 256)
    # the mean is rounded down on both sides of 0
    xs = [x, -x, x + 5000.25, x - 5000.25]
    assert_same_as_codec(xs, [HALF] * len(xs), set())


@pytest.mark.usefixtures("_large_is_wide")
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_wide_tensors_are_encoded_between_all_others(dtype):
    noise = torch.randn(90, generator=torch.Generator().manual_seed(7))
    wide = spanning(1000)
    wide[17], wide[600], wide[1999] = torch.nan, torch.inf, 1e30
    xs = [
        noise, wide, torch.zeros(0), torch.full((2000,), 2.5), spanning(300, 1199), tailed(900.0, 9),
        torch.full((7,), torch.nan), spanning(257, 1500, 1), torch.full((1300,), torch.nan),
        spanning(60, 1300), noise * 1e30,
    ]  # fmt: skip
    xs = [x.to(dtype) for x in xs]
    assert_same_as_codec(xs, [HALF] * len(xs), {4})


@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_relative_bounds_say_which_tensors_are_wide(dtype):
    x = torch.randn(NUM_VALUES, generator=torch.Generator().manual_seed(2)).to(dtype)
    far = x.clone()
    far[::200] *= 20
    xs = [x, x, far, torch.full_like(x, 3.0), torch.full_like(x, torch.nan), x[:100], x]
    bounds = [
        Bound.relative(1e-3), Bound.relative(0.01), Bound.relative(0.0005), Bound.relative(1e-3),
        Bound.relative(1e-3), Bound.relative(0.01), Bound.absolute(0.1),
    ]  # fmt: skip
    numels = [one.numel() for one in xs]
    assert ans_wide.wide_tensors(numels, bounds) == {0, 2, 3, 4}
    assert_same_as_codec(xs, bounds, set())
    assert_same_as_codec(xs[:1], bounds[:1], set())


def test_only_relative_bounds_of_256_to_4096_levels_make_large_tensors_wide():
    values = (1 / 512, 0.0019, 1e-3, 1 / 8192, 1 / 8193, 0.0)
    bounds = [*map(Bound.relative, values), Bound.absolute(1e-3), Bound.relative(1e-3)]
    numels = [LEAST_WIDE] * 7 + [LEAST_WIDE - 1]
    assert ans_wide.wide_tensors(numels, bounds) == {1, 2, 3}


def test_a_second_pass_composes_only_what_spans_more_than_4096_codes(monkeypatch):
    xs = [x[:LEAST_WIDE] for x in FORMS.values()]
    expected = by_reference(xs, [HALF] * len(xs))
    composed, compose = [], lists.compose.encode_streams

    def compose_one(xs: list[Tensor], *options: object) -> EncodedList:
        composed.extend(xs)
        return compose(xs, *options)

    monkeypatch.setattr(lists.compose, "encode_streams", compose_one)
    codec = Ans(bound=HALF)
    with use_backend("gpu"):
        payloads = encode_batch([x.to(DEVICE) for x in xs], [codec] * len(xs)).payloads()
    for one, other in zip(expected, payloads, strict=True):
        assert_bits_equal(one, other.cpu())
    assert len(composed) == 2


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["normal", "with escapes"])
def test_large_tensors_have_the_bytes_of_a_cpu_without_a_wait(name, monkeypatch):
    monkeypatch.undo()
    x = torch.randn(1 << 26, generator=torch.Generator().manual_seed(1))
    if name == "with escapes":
        x[:: 1 << 12] *= 8
    codec = Ans(bound=Bound.relative(1e-3))
    (expected,) = codec.encode([x]).payloads()
    alphabet, num_escapes = head_of(expected)
    assert (alphabet > 256, num_escapes > 0) == (
        (False, True) if "escapes" in name else (True, False)
    )
    moved, out = x.to(DEVICE), torch.empty_like(x, device=DEVICE)

    def step() -> tuple[FusedList, Tensor, Tensor]:
        made = ans.encode_ans([moved], [codec.bound], AnsEncoder())
        start, memory = torch.zeros(1, dtype=torch.int64, device=DEVICE), written(made)
        return made, memory, ans_decode.decode_ans(memory, start, made.sizes, [out], AnsEncoder())

    step()
    with errors_on_waiting():
        made, memory, status = step()
    assert made.needed.tolist() == [0]
    assert_bits_equal(expected, memory[: int(made.sizes)].cpu())
    assert status.tolist() == [0]
    assert_bits_equal(read_by(codec, expected, x), out.cpu())


@pytest.mark.gpu
def test_a_captured_list_follows_its_values_from_narrow_to_wide_and_back(monkeypatch):
    monkeypatch.undo()
    generator = torch.Generator(DEVICE).manual_seed(4)
    shape = (1 << 18) + 77
    xs = [torch.randn(n, generator=generator, device=DEVICE) for n in (shape, 500, shape, shape)]
    bounds = [Bound.relative(1e-3), Bound.relative(1e-3), Bound.relative(0.01), Bound.absolute(0.1)]
    outs = [torch.empty_like(x) for x in xs]

    def step() -> tuple[FusedList, Tensor, Tensor]:
        made = ans.encode_ans(xs, bounds, AnsEncoder())
        rooms, memory = (made.sizes + 7) // 8 * 8, written(made)
        starts = rooms.cumsum(0) - rooms
        return made, memory, ans_decode.decode_ans(memory, starts, made.sizes, outs, AnsEncoder())

    step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made, memory, status = step()
    for change in ("none", "escapes", "constant", "nan"):
        if change == "escapes":
            xs[0][:: 1 << 12] *= 9
        elif change == "constant":
            xs[0].fill_(3.0)
        elif change == "nan":
            xs[0].normal_(generator=generator)[5] = torch.nan
        graph.replay()
        sizes = made.sizes.tolist()
        assert status.tolist() == [0] * 4
        for k, start in enumerate(starts_of(sizes)):
            if made.needed[k] == 0:
                codec = Ans(bound=bounds[k])
                (expected,) = codec.encode([xs[k].cpu()]).payloads()
                assert_bits_equal(expected, memory[start : start + sizes[k]].cpu())
                assert_bits_equal(read_by(codec, expected, xs[k].cpu()), outs[k].cpu())
        assert made.needed[0] == 0
