"""What only codecs of other projects promise; the promises of every codec are in ``test_all``."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

pytest.importorskip("pysz")
pytest.importorskip("zfpy")
from tersor import Bound, create
from tersor.codecs import from_config
from tersor.codecs.foreign.sz3 import ALGORITHMS, Sz3
from tersor.codecs.foreign.zfp import Zfp
from tersor.errors import BackendUnavailableError, CorruptDataError
from tersor.sites.embeddings import Exchange
from tests.checks import assert_bits_equal, assert_rejects, assert_within_bound
from tests.one_by_one import decode_one

BOTH = pytest.mark.parametrize("codec_id", ["sz3", "zfp"])
BOUND = Bound.absolute(1e-3)


def field(*shape: int) -> torch.Tensor:
    """A smooth field far from zero."""
    axes = torch.meshgrid(*(torch.linspace(0, 3, size) for size in shape), indexing="ij")
    return 20 + sum((k + 1) * axis.sin() for k, axis in enumerate(axes))


@BOTH
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_values_that_the_library_misses_are_stored_exactly(codec_id, dtype, monkeypatch):
    codec = create(codec_id, bound=BOUND)
    right = type(codec).from_stream

    def wrong(self, stream, dtype, axes):
        values = right(self, stream, dtype, axes)
        values.reshape(-1)[5] += 0.002
        return values

    monkeypatch.setattr(type(codec), "from_stream", wrong)
    x = field(24, 24).to(dtype)
    packed = codec.pack(x)
    decoded = codec.unpack(packed)
    assert_within_bound(x, decoded, 1e-3)
    assert decoded.view(-1)[5] == x.view(-1)[5]
    assert packed.nbytes < x.nbytes or dtype == torch.bfloat16


@BOTH
def test_a_library_that_cannot_decode_its_own_stream_leaves_values_exact(codec_id, monkeypatch):
    codec = create(codec_id, bound=BOUND)

    def refuse(self, stream, dtype, axes):
        raise IndexError("ran out of predictor selections")

    x = field(24, 24)
    with monkeypatch.context() as patch:
        patch.setattr(type(codec), "from_stream", refuse)
        packed = codec.pack(x)
    assert_bits_equal(codec.unpack(packed), x)


@BOTH
def test_the_library_sees_only_finite_values_near_their_neighbours(codec_id, monkeypatch):
    codec, seen = create(codec_id, bound=BOUND), []
    right = type(codec).to_stream

    def spy(self, values, error_bound):
        seen.append(values.copy())
        return right(self, values, error_bound)

    monkeypatch.setattr(type(codec), "to_stream", spy)
    x = field(30, 40)
    x[0, :3], x[5:12, 7:20], x[20, 0] = torch.inf, torch.nan, -torch.inf
    packed = codec.pack(x)
    assert_within_bound(x, codec.unpack(packed), 1e-3)
    (values,) = seen
    assert np.isfinite(values).all()
    # zeros before the first finite value, else no jump that the field itself does not have
    assert (values[0, :3] == 0).all()
    assert values.reshape(-1)[3:].min() >= 20


@BOTH
def test_damaged_streams_are_refused_before_the_library_sees_them(codec_id, monkeypatch):
    codec = create(codec_id, bound=BOUND)
    x = field(20, 20)
    payload = codec.pack_chunk(x)

    def never(self, stream, dtype, axes):
        raise AssertionError

    monkeypatch.setattr(type(codec), "from_stream", never)
    start = 24 + 16
    for place in range(start, payload.numel(), 7):
        damaged = payload.clone()
        damaged[place] ^= 4
        if place < payload.numel() - 8:
            error = assert_rejects(
                lambda damaged=damaged: decode_one(codec, damaged, torch.empty_like(x)),
                CorruptDataError,
            )
            assert "checksum" in str(error)
    cut = payload[: payload.numel() - 64].clone()
    assert_rejects(lambda: decode_one(codec, cut, torch.empty_like(x)), CorruptDataError)


@BOTH
def test_a_stream_of_another_shape_or_dtype_is_refused(codec_id):
    codec = create(codec_id, bound=BOUND)
    payload = codec.pack_chunk(field(20, 20))
    for out in (torch.empty(20, 21), torch.empty(20, 10)):
        assert_rejects(lambda out=out: decode_one(codec, payload, out), CorruptDataError)
    wide = torch.empty(20, 20, dtype=torch.float64)
    if codec_id == "zfp":
        assert_rejects(lambda: decode_one(codec, payload, wide), CorruptDataError)


@BOTH
def test_an_absent_library_is_named_with_what_installs_it(codec_id, monkeypatch):
    codec, x = create(codec_id, bound=BOUND), field(20, 20)
    packed = codec.pack(x)
    monkeypatch.setitem(sys.modules, {"sz3": "pysz", "zfp": "zfpy"}[codec_id], None)
    for use in (lambda: codec.pack(x), lambda: codec.unpack(packed)):
        with pytest.raises(BackendUnavailableError, match=r"pip install 'tersor\[fields\]'"):
            use()
    # a spec is only data: a file that has one can be opened and its other arrays read
    assert from_config(codec.to_config()) == codec


def test_every_algorithm_of_pysz_can_be_asked_for():
    from pysz import szAlgorithm

    offered = {name for name in vars(szAlgorithm) if not name.startswith("_")}
    assert set(ALGORITHMS.values()) == offered
    x = field(40, 50) + torch.randn(40, 50)
    payloads = {
        bytes(Sz3(bound=BOUND, algorithm=name).pack_chunk(x).tolist()) for name in ALGORITHMS
    }
    # interp-lorenzo is one of two others, whichever a sample says
    assert len(payloads) >= len(ALGORITHMS) - 1


def test_lossless_sz3_loses_nothing():
    codec = Sz3(bound=Bound.absolute(1.0), algorithm="lossless")
    x = field(40, 50)
    assert_bits_equal(codec.unpack(codec.pack(x)), x)


@pytest.mark.parametrize(
    ("codec", "shape", "axes"),
    [
        (Sz3, (), (1,)),
        (Sz3, (1, 1), (1,)),
        (Sz3, (3, 1, 5), (3, 5)),
        (Sz3, (2, 3, 4, 5, 6), (6, 4, 5, 6)),
        (Sz3, (5000, 2, 2, 2), (5000, 2, 2, 2)),
        (Zfp, (4096, 2, 2, 2), (4096, 2, 2, 2)),
        (Zfp, (4097, 2, 2, 2), (8194, 2, 2)),
        (Zfp, (2, 2, 65537), (4, 65537)),
        (Zfp, (2, 2**24 + 1), (2**25 + 2,)),
    ],
)
def test_the_library_is_given_axes_that_it_takes(codec, shape, axes):
    assert codec(bound=BOUND).axes(shape) == axes


@BOTH
@pytest.mark.parametrize("shape", [(4097, 2, 2, 2), (2, 2, 2, 2, 3, 2), (1, 30, 1, 40, 1)])
def test_shapes_that_the_library_does_not_take_are_coded_all_the_same(codec_id, shape):
    codec = create(codec_id, bound=Bound.relative(0.05))
    x = field(*shape)
    packed = codec.pack(x)
    assert_within_bound(x, codec.unpack(packed), packed.error_bound)
    assert packed.ratio > 1.5


def test_prediction_follows_the_axes():
    codec = Sz3(bound=BOUND, algorithm="lorenzo-reg")
    x = field(60, 70)
    assert codec.pack(x).nbytes < codec.pack(x.view(-1)).nbytes


def test_an_exchange_takes_it():
    codec = Sz3(bound=Bound.relative(1.0), algorithm="nopred")
    exchange = Exchange([0], 16, bounds=0.03, codec=codec)
    [y] = exchange([torch.randn(256, 16)])
    assert y.shape == (256, 16)
    assert exchange.stats.forward.ratio > 2
