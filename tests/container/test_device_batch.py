"""Batches that a GPU encodes and decodes without the host waiting for sizes.

With ``TRITON_INTERPRET=1``, as is set without a GPU, the kernels run on CPU tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tersor import Batch, Bound, TensorInfo, create, decode_batch, encode_batch
from tersor.codecs.raw import Raw
from tersor.container import begin_decode_batch
from tersor.errors import CorruptDataError, SpecError
from tersor.kernels.runtime.op import use_backend
from tests import data
from tests.checks import assert_bits_equal
from tests.triton_device import DEVICE, MARKS
from tests.waiting import errors_on_waiting

pytest.importorskip("triton")

pytestmark = MARKS


@pytest.fixture(autouse=True)
def _gpu_kernels() -> Iterator[None]:
    with use_backend("gpu"):
        yield


def on_the_cpu(tensors, codecs) -> Batch:
    with use_backend("cpu"):
        return encode_batch([x.cpu() for x in tensors], codecs)


def infos_of(tensors):
    return [TensorInfo.of(x) for x in tensors]


def flat_list():
    """Tensors of one dtype, each with a bound of its own."""
    names = ("odd_size", "empty", "relu_activations", "constant", "nan_and_inf", "scalar")
    tensors = [data.make(name, torch.float32).to(DEVICE) for name in names]
    bounds = [Bound.relative(10.0**-k) if k % 2 else Bound.absolute(0.01 * k) for k in range(6)]
    return tensors, [create("flat", bound=bound) for bound in bounds]


def mixed_list():
    """Engines, codecs of fixed size and codecs that wait, dtypes mixed, in no order."""
    specs = (
        ("half", {}),
        ("flat", {"bound": Bound.relative(0.01)}),
        ("group8", {}),
        ("flat", {"bound": Bound.absolute(0.5), "block": 64}),
        ("delta", {"bound": Bound.relative(0.01)}),
        ("raw", {}),
        ("flat", {"bound": Bound.relative(0.1)}),
    )
    dtypes = (torch.float32, torch.bfloat16, torch.float32, torch.float64)
    tensors = [torch.randn(40 + 3 * k, 7).to(dtypes[k % 4]).to(DEVICE) for k in range(len(specs))]
    return tensors, [create(name, **options) for name, options in specs]


def fixed_list():
    """Codecs of fixed size, two tensors each and one of them empty, between others."""
    specs = (
        ("half", {}),
        ("group4", {"hadamard": True}),
        ("rows", {"bound": Bound.relative(0.01), "entropy": "ans"}),
        ("fp8", {"group": 64}),
        ("flat", {"bound": Bound.relative(0.01)}),
        ("bf16", {}),
        ("group8", {"group": 96}),
    )
    tensors = [torch.randn(30 + 3 * k, 7) for k in range(len(specs))]
    tensors += [torch.randn(0, 7) if k % 3 == 0 else x * 3 for k, x in enumerate(tensors)]
    return [x.to(DEVICE) for x in tensors], 2 * [create(name, **o) for name, o in specs]


@pytest.mark.parametrize("make", [flat_list, mixed_list, fixed_list])
def test_the_frame_is_that_of_the_cpu(make):
    tensors, codecs = make()
    batch = encode_batch(tensors, codecs)
    assert batch.sizes.device.type == batch.buffer.device.type == DEVICE.type
    expected, found = on_the_cpu(tensors, codecs), batch.trimmed()
    assert_bits_equal(found.sizes, expected.sizes)
    assert_bits_equal(found.buffer.cpu(), expected.buffer)
    assert_bits_equal(batch.offsets.cpu(), expected.offsets)


@pytest.mark.parametrize("make", [flat_list, mixed_list, fixed_list])
def test_payloads_one_by_one_are_those_of_the_cpu(make):
    tensors, codecs = make()
    with use_backend("cpu"):
        expected = encode_batch([x.cpu() for x in tensors], codecs).payloads()
    for payload, other in zip(encode_batch(tensors, codecs).payloads(), expected, strict=True):
        assert_bits_equal(payload.cpu(), other)


@pytest.mark.parametrize("make", [flat_list, mixed_list, fixed_list])
@pytest.mark.parametrize("trim", [False, True])
def test_decoding_gives_what_the_cpu_decodes(make, trim):
    tensors, codecs = make()
    batch = encode_batch(tensors, codecs)
    with use_backend("cpu"):
        expected = decode_batch(on_the_cpu(tensors, codecs), infos_of(tensors), codecs)
    found = decode_batch(batch.trimmed() if trim else batch, infos_of(tensors), codecs)
    for x, y in zip(expected, found, strict=True):
        assert_bits_equal(y.cpu(), x)


def test_decoding_writes_into_strided_memory():
    tensors, codecs = mixed_list()
    batch = encode_batch(tensors, codecs)
    out = [torch.zeros(*x.shape, 2, dtype=x.dtype, device=DEVICE)[..., 0] for x in tensors]
    found = decode_batch(batch, infos_of(tensors), codecs, out)
    for x, y, expected in zip(out, found, decode_batch(batch, infos_of(tensors), codecs),
                              strict=True):  # fmt: skip
        assert y is x
        assert_bits_equal(y.contiguous(), expected)


@pytest.mark.parametrize("sizes", [[-1, 24], [1 << 62, 24], [24, 1 << 40], [0, 24], [24, 0]])
def test_impossible_sizes_are_refused(sizes):
    x = torch.randn(1 << 10, device=DEVICE)
    codec = create("flat", bound=Bound.relative(0.01))
    batch = encode_batch([x, x], [codec] * 2)
    bad = Batch(batch.buffer, torch.tensor(sizes, device=DEVICE))
    decoding = begin_decode_batch(bad, infos_of([x, x]), [codec] * 2)
    with pytest.raises(CorruptDataError):
        decoding.check()


def test_a_short_buffer_and_a_damaged_payload_are_refused():
    tensors, codecs = flat_list()
    batch = encode_batch(tensors, codecs)
    end = int(batch.offsets[-1])
    short = Batch(batch.buffer[: end - 8], batch.sizes)
    with pytest.raises(CorruptDataError, match="sizes"):
        decode_batch(short, infos_of(tensors), codecs)
    damaged = batch.buffer.clone()
    damaged[int(batch.offsets[2]) + 16] ^= 0x80
    with pytest.raises(CorruptDataError):
        decode_batch(Batch(damaged, batch.sizes), infos_of(tensors), codecs)


@pytest.mark.parametrize("name", ["half", "bf16", "fp8", "group8", "group4"])
@pytest.mark.parametrize("sizes", [[8, 0], [0, 8], [-1, 0], [1 << 62, 0]])
def test_wrong_sizes_of_codecs_of_fixed_size_are_refused(name, sizes):
    xs = [torch.randn(50, device=DEVICE), torch.randn(0, device=DEVICE)]
    codecs = [create(name)] * 2
    batch = encode_batch(xs, codecs)
    begin_decode_batch(batch, infos_of(xs), codecs).check()
    bad = Batch(batch.buffer, torch.tensor(sizes, device=DEVICE))
    decoding = begin_decode_batch(bad, infos_of(xs), codecs)
    with pytest.raises(CorruptDataError):
        decoding.check()


def needing_a_second_pass() -> tuple[list[torch.Tensor], list[Any]]:
    """Rows with a NaN, codes that span more than 256, and what a fused kernel takes."""
    rows = torch.randn(8, 16).repeat(40, 1)
    broken = rows.clone()
    broken[5, 3] = torch.nan
    wide = torch.randn(2000)
    bound, fine = Bound.relative(0.03), Bound.relative(1e-4)
    kinds = [create("rows", bound=bound, entropy="ans"), create("ans", bound=fine)]
    xs = [rows, broken, wide, broken * 2]
    return [x.to(DEVICE) for x in xs], [kinds[0], kinds[0], kinds[1], kinds[0]]


def test_what_a_fused_kernel_leaves_has_the_bytes_of_the_cpu():
    xs, codecs = needing_a_second_pass()
    expected = on_the_cpu(xs, codecs)
    batch = encode_batch(xs, codecs)
    assert int(batch.sizes.sum()) > int(expected.sizes.sum())
    for found in (batch.completed(), batch.trimmed()):
        assert found.sizes.tolist() == expected.sizes.tolist()
        assert_bits_equal(found.buffer.cpu(), expected.buffer)
    for one, other in zip(batch.payloads(), expected.payloads(), strict=True):
        assert_bits_equal(one.cpu(), other)
    for x, y in zip(xs, decode_batch(batch, infos_of(xs), codecs), strict=True):
        assert torch.equal(x.isnan(), y.isnan())


def test_compress_gives_the_bytes_and_the_bound_of_the_cpu():
    for x, codec in zip(*needing_a_second_pass(), strict=True):
        found = codec.pack(x)
        with use_backend("reference"):
            expected = codec.pack(x.cpu())
        assert found.error_bound == expected.error_bound
        assert_bits_equal(found.payloads[0].cpu(), expected.payloads[0])


@pytest.mark.parametrize("size", [0, 1, 100, 40_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_compress_finds_the_range_that_its_promise_follows_from(size, dtype):
    x = torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)
    codec = create("flat", bound=Bound.relative(0.01))
    with use_backend("reference"):
        expected = codec.resolve_bound(x)
    assert codec.pack(x.to(DEVICE)).error_bound == expected


@pytest.mark.parametrize("name", ["half", "fp8", "group4"])
def test_payloads_of_fixed_size_that_are_cut_short_are_refused(name):
    xs = [torch.randn(size, device=DEVICE) for size in (0, 50, 70)]
    codecs = [create(name)] * 3
    *others, last = encode_batch(xs, codecs).payloads()
    for x, y in zip(xs, decode_batch(Batch.of([*others, last]), infos_of(xs), codecs), strict=True):
        assert float((x - y).abs().sum()) < 0.5 * x.numel() + 1e-9
    with pytest.raises(CorruptDataError, match="expected"):
        decode_batch(Batch.of([*others, last[:-2].clone()]), infos_of(xs), codecs)


def test_wrong_lists_are_refused():
    tensors, codecs = flat_list()
    batch = encode_batch(tensors, codecs)
    with pytest.raises(SpecError, match="as many"):
        begin_decode_batch(batch, infos_of(tensors)[:-1], codecs)
    with pytest.raises(SpecError, match="as many"):
        begin_decode_batch(batch, infos_of(tensors), codecs, tensors[:-1])


@pytest.mark.gpu
def test_tensors_on_two_devices_are_refused():
    codec = create("flat", bound=Bound.relative(0.01))
    with pytest.raises(SpecError, match="one device"):
        encode_batch([torch.randn(3), torch.randn(3, device="cuda")], [codec] * 2)


ENGINES = {
    "delta": {"bound": Bound.relative(0.03)},
    "flat": {"bound": Bound.relative(0.03)},
    "half": {},
    "fp8": {},
    "group8": {},
    "group4": {"hadamard": True},
}


def lookups(num_tables: int = 4, num_rows: int = 64, name: str = "flat"):
    xs = [torch.randn(num_rows, 64, device=DEVICE) for _ in range(num_tables)]
    return xs, [create(name, **ENGINES[name])] * num_tables


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [64, 256])
@pytest.mark.parametrize("name", ENGINES)
def test_nothing_waits_for_the_device(name, num_rows):
    xs, codecs = lookups(num_rows=num_rows, name=name)
    infos, outs = infos_of(xs), [torch.empty_like(x) for x in xs]
    begin_decode_batch(encode_batch(xs, codecs), infos, codecs, outs).check()
    with errors_on_waiting():
        decoding = begin_decode_batch(encode_batch(xs, codecs), infos, codecs, outs)
        # other tensors: their addresses are uploaded without waiting too
        begin_decode_batch(encode_batch([x + 1 for x in xs], codecs), infos, codecs, outs)
    decoding.check()


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [64, 256])
@pytest.mark.parametrize("name", ENGINES)
def test_a_captured_graph_encodes_and_decodes_new_values(name, num_rows):
    xs, codecs = lookups(num_rows=num_rows, name=name)
    infos, outs = infos_of(xs), [torch.empty_like(x) for x in xs]

    def step():
        batch = encode_batch(xs, codecs)
        return batch, begin_decode_batch(batch, infos, codecs, outs)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
        step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        batch, decoding = step()
    for scale in (1.0, 7.0):
        for x in xs:
            x.normal_().mul_(scale)
        graph.replay()
        decoding.check()
        expected = on_the_cpu(xs, codecs)
        assert_bits_equal(batch.trimmed().buffer.cpu(), expected.buffer)
        with use_backend("cpu"):
            values = decode_batch(expected, infos, codecs)
        for x, y in zip(values, outs, strict=True):
            assert_bits_equal(y.cpu(), x)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_capturing_without_a_warm_up_says_what_to_do():
    xs, codecs = lookups(5, 37)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(SpecError, match="once before"), torch.cuda.graph(graph):
        encode_batch(xs, codecs)


@pytest.mark.gpu
def test_work_is_queued_on_the_current_stream():
    xs, codecs = lookups(4, 4096)
    infos, outs = infos_of(xs), [torch.zeros_like(x) for x in xs]
    expected = decode_batch(encode_batch(xs, codecs), infos, codecs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        ys = [torch.zeros_like(x) for x in xs]
        torch.cuda._sleep(50_000_000)
        for x, y in zip(xs, ys, strict=True):
            y.copy_(x)
        decoding = begin_decode_batch(encode_batch(ys, codecs), infos, codecs, outs)
        decoding.check()
    for x, y in zip(expected, outs, strict=True):
        assert_bits_equal(y, x)


@pytest.mark.gpu
def test_memory_does_not_grow_over_ten_thousand_calls():
    xs, codecs = lookups(3, 16)
    infos, outs = infos_of(xs), [torch.empty_like(x) for x in xs]
    for k in range(10_000):
        # shifted starts: new addresses in every call
        parts = [x.view(-1)[k % 16 * 4 :][:256] for x in xs]
        batch = encode_batch(parts, codecs)
        begin_decode_batch(batch, infos_of(parts), codecs, [y.view(-1)[:256] for y in outs])
        if k == 1000:
            torch.cuda.synchronize()
            before = torch.cuda.memory_reserved()
    torch.cuda.synchronize()
    assert torch.cuda.memory_reserved() == before
    assert infos


@pytest.mark.gpu
@pytest.mark.parametrize("name", ENGINES)
def test_the_number_of_launches_does_not_grow_with_the_list(name):
    from tersor.bench.core.footprint import count_launches

    counts = []
    for num_tables in (2, 40):
        xs, codecs = lookups(num_tables, name=name)
        infos, outs = infos_of(xs), [torch.empty_like(x) for x in xs]

        def step(xs=xs, codecs=codecs, infos=infos, outs=outs):
            begin_decode_batch(encode_batch(xs, codecs), infos, codecs, outs)

        step()
        counts.append(count_launches({"step": step}, DEVICE)["step"])
    assert counts[0] == counts[1] > 0


class Boasting(Raw):
    """Says that its payloads are larger than it writes them."""

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        return super().max_nbytes(shape, dtype) + 8


def test_a_codec_that_is_wrong_about_its_fixed_size_is_refused():
    x = torch.randn(5, 7, device=DEVICE)
    with pytest.raises(SpecError, match="correct max_nbytes or size_kind"):
        encode_batch([x], [Boasting()])


def gradients(scale: float = 1.0):
    generator = torch.Generator().manual_seed(3)
    tensors = [torch.randn(size, generator=generator).to(DEVICE) * scale for size in (9000, 70, 0)]
    return tensors, [create("flat", bound=Bound.absolute(0.1))] * 3


def test_a_buffer_is_as_small_as_the_expected_ratio_says():
    tensors, codecs = gradients()
    batch = encode_batch(tensors, codecs, expected_ratio=4)
    assert batch.buffer.numel() == -(-sum(x.nbytes for x in tensors) // 4)
    assert batch.may_overflow
    expected = on_the_cpu(tensors, codecs)
    completed = batch.completed()
    assert_bits_equal(expected.buffer, completed.buffer)
    assert completed.buffer.data_ptr() == batch.buffer.data_ptr(), "all fit, and none is copied"
    assert not completed.may_overflow


@pytest.mark.parametrize("name", ["flat", "delta", "ans", "rows"])
def test_payloads_that_do_not_fit_are_written_again_and_decoded(name):
    tensors, _ = gradients(scale=10.0 if name == "rows" else 1000.0)
    options = {"entropy": "ans"} if name == "rows" else {}
    codecs = [create(name, bound=Bound.absolute(0.3), **options)] * 3
    batch = encode_batch(tensors, codecs, expected_ratio=100)
    expected = on_the_cpu(tensors, codecs)
    assert batch.buffer.numel() < expected.buffer.numel()
    assert_bits_equal(expected.buffer, batch.completed().buffer)
    assert_bits_equal(expected.buffer, batch.trimmed().buffer)
    for one, other in zip(expected.payloads(), batch.payloads(), strict=True):
        assert_bits_equal(one, other)
    with use_backend("cpu"):
        values = decode_batch(expected, infos_of(tensors), codecs)
    for decode in (decode_batch, lambda *a: begin_decode_batch(*a).check()):
        fresh = encode_batch(tensors, codecs, expected_ratio=100)
        for one, other in zip(values, decode(fresh, infos_of(tensors), codecs), strict=True):
            assert_bits_equal(one, other)


def test_lists_of_several_codecs_have_room_for_all_payloads():
    tensors, codecs = mixed_list()
    batch = encode_batch(tensors, codecs, expected_ratio=1000)
    assert not batch.may_overflow
    assert_bits_equal(on_the_cpu(tensors, codecs).buffer, batch.completed().trimmed().buffer)


@pytest.mark.parametrize("ratio", [0, -1.0, float("nan"), float("inf"), "4", True])
def test_a_ratio_that_is_none_is_refused(ratio):
    tensors, codecs = gradients()
    with pytest.raises(SpecError, match=r"^expected_ratio, original over encoded bytes, must be"):
        encode_batch(tensors, codecs, expected_ratio=ratio)


@pytest.mark.parametrize("name", ["flat", "delta"])
def test_a_batch_does_not_hold_the_tensors_it_was_made_of(name):
    x = torch.randn(9000, device=DEVICE)
    held = weakref.ref(x)
    batch = encode_batch([x], [create(name, bound=Bound.absolute(0.1))])
    del x
    assert held() is None
    assert batch.trimmed().buffer.numel()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "options"), [("flat", {}), ("delta", {}), ("delta", {"lorenzo": 3})]
)
def test_compress_takes_the_memory_of_its_payload_and_little_more(name, options, dtype):
    x = torch.randn(64, 512, 1024, device=DEVICE).to(dtype)
    codec = create(name, bound=Bound.relative(1e-2), **options)
    nbytes = codec.pack(x).nbytes
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    packed = codec.pack(x)
    assert torch.cuda.max_memory_allocated() - before <= nbytes + 0.15 * x.nbytes
    assert packed.nbytes == nbytes


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["flat", "delta"])
def test_a_large_list_takes_little_more_memory_than_its_tensors(name):
    xs = [torch.randn(65536, 64, device=DEVICE) for _ in range(8)]
    codecs = [create(name, bound=Bound.relative(0.03))] * 8
    encode_batch(xs, codecs)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    batch = encode_batch(xs, codecs)
    peak = torch.cuda.max_memory_allocated() - before
    assert peak <= 1.1 * sum(x.nbytes for x in xs)
    assert batch.buffer.numel()
