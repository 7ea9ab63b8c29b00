"""Encoders are lossless on any codes, say their largest size, and know where they end."""

from __future__ import annotations

import pytest
import torch

from tersor.errors import BackendUnavailableError, CorruptDataError
from tersor.kernels.batch.encoders import lz
from tersor.kernels.batch.encoders.bitpack import BitpackEncoder
from tersor.kernels.batch.encoders.entropy import AnsEncoder, HuffmanEncoder
from tersor.kernels.batch.encoders.lz import Lz4Encoder, ZstdEncoder
from tests.checks import assert_rejects
from tests.codecs.variants import NARROW_TABLE, WIDE_TABLE
from tests.kernels.cases import code_inputs

ENCODERS = {
    "bitpack": BitpackEncoder(),
    "bitpack-64-base": BitpackEncoder(block=64, base=True),
    "huffman": HuffmanEncoder(),
    "ans": AnsEncoder(),
    "ans-static": AnsEncoder(frequencies=NARROW_TABLE),
    "ans-static-wide": AnsEncoder(frequencies=WIDE_TABLE),
    "lz4": Lz4Encoder(),
    "zstd": ZstdEncoder(level=3),
}
ALL = pytest.mark.parametrize("name", ENCODERS)


@ALL
def test_codes_come_back_and_the_body_ends_where_it_says(name):
    encoder = ENCODERS[name]
    for label, shaped in code_inputs(torch.float32).items():
        codes = shaped.reshape(-1)
        body = encoder.encode(codes.clone())
        assert body.numel() % 8 == 0, label
        assert body.numel() <= encoder.max_nbytes(codes.numel()), label
        followed = torch.cat([body, torch.full((24,), 0xEE, dtype=torch.uint8)])
        found, nbytes = encoder.decode(followed, codes.numel())
        assert nbytes == body.numel(), label
        assert torch.equal(found, codes), label


@ALL
def test_room_before_the_body_changes_nothing(name):
    encoder = ENCODERS[name]
    codes = torch.arange(-500, 500, dtype=torch.int32)
    assert torch.equal(encoder.encode(codes, 24)[24:], encoder.encode(codes))


@ALL
def test_bodies_for_another_number_of_codes_are_refused_or_left_unfinished(name):
    encoder = ENCODERS[name]
    codes = (torch.arange(3000) % 7 - 3).to(torch.int32)
    body = encoder.encode(codes)
    for num_codes in (2000, 4500, 200_000):
        try:
            _, nbytes = encoder.decode(body, num_codes)
        except CorruptDataError:
            continue
        assert nbytes != body.numel()


@ALL
def test_truncated_bodies_are_refused(name):
    encoder = ENCODERS[name]
    body = encoder.encode((torch.arange(300) % 7 - 3).to(torch.int32))
    for size in range(body.numel()):
        assert_rejects(lambda size=size: encoder.decode(body[:size], 300), CorruptDataError)


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_several_frames_come_back(name, monkeypatch):
    monkeypatch.setattr(lz, "FRAME_CODES", 100)
    encoder = ENCODERS[name]
    codes = torch.randint(-(2**20), 2**20, (1234,), dtype=torch.int32)
    found, _ = encoder.decode(encoder.encode(codes), 1234)
    assert torch.equal(found, codes)


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_a_missing_package_is_named(name, monkeypatch):
    def missing(module):
        raise ImportError(module)

    monkeypatch.setattr(lz, "import_module", missing)
    codes = torch.zeros(10, dtype=torch.int32)
    error = assert_rejects(lambda: ENCODERS[name].encode(codes), BackendUnavailableError)
    assert {"lz4": "lz4", "zstd": "zstandard"}[name] in str(error)


def test_a_zstd_frame_that_states_an_absurd_size_is_not_decompressed():
    """Its content size is compared before anything is allocated for it."""
    body = ENCODERS["zstd"].encode(torch.zeros(1000, dtype=torch.int32))
    data = bytearray(body.tolist())
    place = data.index(b"\x28\xb5\x2f\xfd")
    # frame header: one segment, a content size of eight bytes
    data[place + 4] = 0xE0
    data[place + 5 : place + 13] = (2**42).to_bytes(8, "little")
    hostile = torch.frombuffer(data, dtype=torch.uint8)
    assert_rejects(lambda: ENCODERS["zstd"].decode(hostile, 1000), CorruptDataError)
