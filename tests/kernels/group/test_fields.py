"""What conformance on small inputs cannot see of fields of few bits: samples, payloads of other memory, and sizes."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from tersor.codecs import create
from tersor.errors import CorruptDataError
from tersor.kernels.batch.encoded_list import EncodedList, finish_decoding
from tersor.kernels.group.masks import layout as mask_layout
from tersor.kernels.group.masks import mask_quantize
from tersor.kernels.group.ranges import layout as range_layout
from tersor.kernels.group.ranges import range_dequantize, range_quantize
from tersor.kernels.runtime.op import use_backend
from tests.kernels.group_cases import field_inputs
from tests.triton_device import INTERPRETED

BACKENDS = [
    "cpu", pytest.param("gpu", marks=[] if INTERPRETED else [pytest.mark.gpu]),
]  # fmt: skip
CODECS = [("mask4", {}), ("mask2", {}), ("group2", {}), ("group2", {"seed": 2**40 + 3})]


def device_of(backend: str) -> str:
    return "cuda" if backend == "gpu" and not INTERPRETED else "cpu"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("num_groups", [64, 65, 130])
def test_the_sampled_groups_are_those_of_the_reference(backend, num_groups):
    # every group has a mean of its own, so that another one in the sample changes the fractions
    x = torch.rand(num_groups * 256 - 3, generator=torch.Generator().manual_seed(num_groups))
    x = (x * torch.linspace(0.1, 1, x.numel())).pow(1 + torch.arange(x.numel()) // 256 / 40)
    expected = mask_quantize.implementation("reference")(x, 4)
    found = mask_quantize.implementation(backend)(x.to(device_of(backend)), 4)
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("group", [12, 88, 4100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_ranges_are_found_where_tiles_end_inside_of_groups(backend, group, dtype):
    x = torch.linspace(-3, 5, 5003).to(dtype)
    with use_backend("reference"):
        payload = range_quantize(x, group, 2**33 + 1)
        expected = torch.empty_like(x)
        range_dequantize(payload, group, expected)
    with use_backend(backend):
        found = range_quantize(x.to(device_of(backend)), group, 2**33 + 1)
        out = torch.empty_like(x, device=device_of(backend))
        range_dequantize(found, group, out)
    assert torch.equal(found.cpu(), payload)
    assert torch.equal(out.cpu(), expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("codec_id", "options"), CODECS)
def test_payloads_in_memory_of_the_caller_are_the_same(backend, codec_id, options):
    codec, device = create(codec_id, **options), device_of(backend)
    for xs in (
        list(field_inputs(torch.bfloat16).values()),
        [torch.ones(0), torch.ones(1)],
        [torch.ones(259)],
    ):
        with use_backend("reference"):
            expected = codec.encode(xs)
        nbytes = expected.frame().numel()
        memory = torch.full((nbytes + 16,), 0xA5, dtype=torch.uint8, device=device)
        with use_backend(backend):
            codec.encode([x.to(device) for x in xs], out=memory[8:-8])
        assert torch.equal(memory[8:-8].cpu(), expected.frame())
        assert bool((memory[:8] == 0xA5).all() & (memory[-8:] == 0xA5).all())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("codec_id", "options"), CODECS[1:3])
def test_a_payload_of_a_wrong_size_is_reported_and_nothing_written(backend, codec_id, options):
    codec, device = create(codec_id, **options), device_of(backend)
    xs = [torch.ones(300, device=device), torch.ones(1000, device=device)]
    with use_backend(backend):
        encoded = codec.encode(xs)
        wrong = [encoded.payloads()[0], encoded.payloads()[1][:-8]]
        numbers = torch.tensor([one.numel() for one in wrong], device=device)
        offsets = torch.tensor([0, wrong[1].data_ptr() - wrong[0].data_ptr()], device=device)
        late = EncodedList(numbers, encoded.frame(), offsets=offsets)
        outs = [torch.full_like(x, 7.0) for x in xs]
        if backend == "cpu":
            late = EncodedList.apart(wrong)
        with pytest.raises(CorruptDataError):
            finish_decoding(codec.decode(late, outs), wrong, outs)
    assert bool((outs[1] == 7.0).all())


if find_spec("triton"):
    import triton.language as tl

    from tersor.kernels.group.masks import gpu as masks
    from tersor.kernels.group.ranges import gpu as ranges
    from tersor.kernels.runtime.gpu.launch import jit_kernel

    @jit_kernel(do_not_specialize=["count"])
    def sizes_kernel(count, found, nbits: tl.constexpr, group: tl.constexpr):
        tl.store(found, masks.payload_nbytes(count, nbits))
        tl.store(found + 1, ranges.payload_nbytes(count, group))


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("count", [1, 257, 2**31 - 256, 2**31 - 255, 2**31 - 1, 2**31])
def test_sizes_of_payloads_do_not_wrap_where_counts_are_just_below_two_to_the_31(backend, count):
    pytest.importorskip("triton")
    # the numbers of a kernel for one tensor, which has its count as an argument: int32 as far as it goes
    for group in (4, 256, 4100):
        found = torch.zeros(2, dtype=torch.int64, device=device_of(backend))
        sizes_kernel[(1,)](count, found, nbits=4, group=group)
        assert found.tolist() == [
            mask_layout.payload_nbytes(count, 4),
            range_layout.payload_nbytes(count, group),
        ]
