"""Large lists, of which neither symbols nor words are held, have the payloads of the codec ``ans``."""

from __future__ import annotations

import pytest
import torch

from tersor import compress, create
from tersor.kernels.payload.layout import CODED, CONSTANT, EXACT
from tersor.kernels.runtime.sparing import sparing_memory
from tersor.types import FLOAT_DTYPES, Bound
from tests.checks import assert_bits_equal
from tests.codecs.variants import NARROW_TABLE, WIDE_TABLE
from tests.triton_device import INTERPRETED, MARKS

pytest.importorskip("triton")
from tersor.kernels.batch.gpu import ans, ans_plan, ans_quantize
from tests.kernels.batch.test_ans_delta_gpu import FINE, assert_same_as_codec, shaped, smooth

pytestmark = MARKS


@pytest.fixture(autouse=True)
def _all_lists_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ans, "MOST_HELD_NBYTES", -1)
    if INTERPRETED:
        # so that tensors of a few hundred values have several runs, in several pieces
        monkeypatch.setattr(ans_quantize, "TILE", 1024)
        monkeypatch.setattr(ans_quantize, "RUN", 2)


@pytest.mark.parametrize("dims", [0, 2])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_payloads_of_large_lists_are_those_of_the_codec(dtype, dims):
    xs = shaped(dtype)
    bounds = [Bound.relative(0.02) if k % 2 else FINE for k in range(len(xs))]
    payloads = assert_same_as_codec(xs, bounds, dims)
    assert {int(payload[0]) for payload in payloads} == {CODED, EXACT, CONSTANT}


@pytest.mark.parametrize("dims", [0, 1, 3])
def test_several_blocks_and_pieces(dims):
    x = smooth(4, 36, 32)
    x[3, 1, 1] = torch.nan
    assert_same_as_codec([x, smooth(100), smooth(2200)], [FINE] * 3, dims)


@pytest.mark.parametrize("table", [NARROW_TABLE, WIDE_TABLE], ids=["narrow", "wide"])
def test_static_tables(table):
    x = smooth(1100)
    x[700] = -40.0
    assert_same_as_codec([x, smooth(50)], [FINE] * 2, 0, table)


@pytest.mark.parametrize("dims", [0, 2])
def test_wide_alphabets_and_what_escapes_them(dims, monkeypatch):
    monkeypatch.setattr(ans_plan, "LEAST_WIDE", 1)
    few = smooth(9, 40) * 10
    few[4, 4], few[7, 7] = 60.0, -60.0
    # a list with tensors of both kinds
    many = torch.randn(20, 70, generator=torch.Generator().manual_seed(3)) * 20
    payloads = assert_same_as_codec([few, many], [FINE, FINE], dims, are_wide=True)
    assert any(int(payload[24 + 8]) for payload in payloads), "no escapes"
    assert any(int(payload[24 + 5]) for payload in payloads), "no wide alphabet"


def test_symbols_are_not_held_where_memory_is_short(monkeypatch):
    monkeypatch.setattr(ans, "MOST_HELD_NBYTES", 1 << 40)
    monkeypatch.setattr(ans, "_code_symbols", None)
    with sparing_memory():
        assert_same_as_codec([smooth(100)], [FINE], 0)


def test_narrow_and_wide_streams_of_one_list(monkeypatch):
    monkeypatch.setattr(ans_plan, "LEAST_WIDE", 500)
    x = smooth(30, 40)
    assert_same_as_codec([smooth(300), x, smooth(200)], [FINE, Bound.relative(1e-3), FINE], 0)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"lorenzo": 3}, {"frequencies": NARROW_TABLE}], ids=str)
def test_one_large_tensor_takes_little_memory_and_has_the_bytes_of_the_cpu(dtype, options):
    x = smooth(40, 512, 1024).to(dtype)
    on_device = x.cuda()
    codec = create("ans", bound=Bound.relative(1e-3) if not options else FINE, **options)
    compress(on_device, codec=codec)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    packed = compress(on_device, codec=codec)
    beyond = torch.cuda.max_memory_allocated() - before - packed.nbytes
    assert_bits_equal(compress(x, codec=codec).payloads[0], packed.payloads[0].cpu())
    assert beyond <= 0.15 * x.nbytes
