"""Lists of tensors: the bytes and values of one at a time, however many one kernel call takes."""

from __future__ import annotations

import pytest
import torch

from tersor import Bound, TensorInfo
from tersor.container import Batch, decode_batch, encode_batch
from tersor.errors import CorruptDataError
from tersor.kernels.runtime import cpu_runs, threads
from tests import data
from tests.checks import assert_bits_equal, assert_rejects
from tests.codecs.variants import build

LISTED = ("flat", "flat-64", "rows", "rows-ans", "flat-base")
"""Codecs that encode a list in one call, and relatives that share their code."""
BOUNDS = (Bound.relative(0.03), Bound.absolute(0.1), Bound.relative(1e-5))


@pytest.fixture(params=[1, 2], autouse=True)
def num_threads(request, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: request.param)
    monkeypatch.setattr(threads, "_MIN_NBYTES_PER_THREAD", 1)


def common(seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Looked-up rows that the list kernels take themselves."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(40, 16, generator=generator)
    return table[torch.randint(0, 40, (60 + seed,), generator=generator)].to(dtype)


def uncommon() -> list[torch.Tensor]:
    """Slices that the list kernels must leave to others, and some at the edge."""
    uncommon = [common(seed) for seed in range(5)]
    for x, value in zip(uncommon, (torch.nan, torch.inf, -torch.inf, 1e30, -3e38), strict=True):
        x[7, 3] = value
    signed_zeros = torch.zeros(9, 8)
    signed_zeros[::2] = -0.0
    return [
        *uncommon,
        torch.full((30, 8), torch.nan),
        torch.full((30, 8), -2.5),
        signed_zeros,
        -common(5).abs() - 1,
        common(6).abs() + 1,
        common(7) * 1e-40,
        common(8) * 1e38,
        common(9).repeat(1, 3)[:, 3:],
        common(10).t(),
        common(11)[:, :13].contiguous(),
        torch.linspace(-1, 1, 4000).view(500, 8),
        torch.zeros(0, 8),
        torch.zeros(8, 0),
        torch.tensor(3.0),
    ]


def mixed() -> list[torch.Tensor]:
    """Common and uncommon slices of all dtypes in turn."""
    others = uncommon()
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        others += data.inputs(dtype).values()
    tensors = []
    for number, x in enumerate(others):
        dtype = torch.float64 if number % 7 == 0 else torch.float32
        tensors += [x, common(number % 50, dtype)]
    return tensors


@pytest.mark.parametrize("bound", BOUNDS, ids=str)
@pytest.mark.parametrize("variant", LISTED)
def test_a_list_has_the_bytes_and_values_of_one_at_a_time(variant, bound):
    codec, tensors = build(variant, bound), mixed()
    codecs, infos = [codec] * len(tensors), [TensorInfo.of(x) for x in tensors]
    payloads = encode_batch(tensors, codecs).payloads()
    decoded = decode_batch(Batch.of(payloads), infos, codecs)
    for x, payload, y in zip(tensors, payloads, decoded, strict=True):
        alone = codec.pack(x)
        assert_bits_equal(payload, alone.payloads[0])
        assert_bits_equal(y, codec.unpack(alone))


def test_codecs_that_take_turns_keep_their_places():
    tensors = [common(seed) for seed in range(24)]
    codecs = [build(LISTED[k % 3], BOUNDS[k % 2]) for k in range(24)]
    codecs[5] = codecs[6] = build("half")
    payloads = encode_batch(tensors, codecs).payloads()
    decoded = decode_batch(Batch.of(payloads), [TensorInfo.of(x) for x in tensors], codecs)
    for x, codec, payload, y in zip(tensors, codecs, payloads, decoded, strict=True):
        assert_bits_equal(payload, codec.pack(x).payloads[0])
        assert_bits_equal(y, codec.unpack(codec.pack(x)))


@pytest.mark.parametrize("variant", ["flat", "rows"])
def test_common_slices_share_a_buffer_and_leave_others_alone(variant, monkeypatch):
    """What shares a buffer came out of one call: without this, nothing would show that it does."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    tensors = [common(0), uncommon()[0], common(1), common(2)]
    payloads = encode_batch(tensors, [build(variant, BOUNDS[0])] * 4).payloads()
    owners = [payload.untyped_storage().data_ptr() for payload in payloads]
    assert owners[0] == owners[2] == owners[3] != owners[1]
    assert all(payload.storage_offset() % 8 == 0 for payload in payloads)


@pytest.mark.parametrize("variant", ["flat", "rows"])
def test_long_lists_are_cut_into_runs(variant, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    monkeypatch.setattr(cpu_runs, "_RUN_NBYTES", 3 * common(0).nbytes)
    tensors = [common(0) for _ in range(10)]
    payloads = encode_batch(tensors, [build(variant, BOUNDS[0])] * 10).payloads()
    assert len({payload.untyped_storage().data_ptr() for payload in payloads}) == 4
    for payload in payloads[1:]:
        assert_bits_equal(payload, payloads[0])


@pytest.mark.parametrize("variant", ["flat", "rows"])
def test_one_damaged_payload_of_a_list_is_refused(variant):
    tensors = [common(seed) for seed in range(6)]
    codecs, infos = [build(variant, BOUNDS[0])] * 6, [TensorInfo.of(x) for x in tensors]
    payloads = encode_batch(tensors, codecs).payloads()
    for place in (0, 3, 5):
        shorter, altered = payloads[place][:-8], payloads[place].clone()
        altered[24:32] = 255
        for damaged in (shorter, altered):
            changed = [*payloads[:place], damaged, *payloads[place + 1 :]]
            assert_rejects(
                lambda changed=changed: decode_batch(Batch.of(changed), infos, codecs),
                CorruptDataError,
            )
