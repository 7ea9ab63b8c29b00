"""What a user types first, with torch and with numpy, and what a wrong call says."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tersor
from tersor import Bound, compress, create, decompress
from tersor.api import resolve_codec
from tersor.errors import (
    BackendUnavailableError,
    CorruptDataError,
    SpecError,
    TersorError,
    UnknownCodecError,
)
from tests.checks import assert_bits_equal, assert_rejects, assert_within_bound
from tests.codecs.variants import AUTO, PAYLOADS, build

BOUND = Bound.absolute(0.01)


def values(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def test_a_tensor_comes_back_with_its_dtype_and_shape():
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        x = values(7, 9).to(dtype)
        packed = compress(x, BOUND)
        y = decompress(packed)
        assert_within_bound(x, y, 0.01)
        assert packed.error_bound == 0.01
        assert packed.ratio == x.nbytes / packed.nbytes


@pytest.mark.parametrize("mask", [[True, False, False], False, np.ma.nomask])
def test_a_masked_array_is_refused_wherever_arrays_enter(mask, tmp_path):
    x = np.ma.masked_array(np.ones(3, np.float32), mask=mask)
    packed = compress(np.ones(3, np.float32), BOUND)
    with tersor.Writer(tmp_path / "whole.tsr") as writer:
        for call in (
            lambda: compress(x, BOUND),
            lambda: compress(x, codec="raw"),
            lambda: tersor.save(tmp_path / "x.tsr", {"x": x}, BOUND),
            lambda: writer.add("x", x, create("raw")),
            lambda: create("raw").pack(x),
            lambda: tersor.encode_batch([x], [create("raw")]),
            lambda: decompress(packed, out=x),
        ):
            error = assert_rejects(call, SpecError)
            assert "mask" in str(error)
            assert "filled" in str(error)
    assert not (tmp_path / "x.tsr").exists()


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", ">f8", "<f2", ">f2"])
def test_numpy_arrays_of_any_byte_order(dtype):
    x = values(8, 6).numpy().astype(dtype)
    before = x.tobytes()
    y = decompress(compress(x, BOUND))
    native = x.astype(x.dtype.newbyteorder("="))
    assert_within_bound(torch.from_numpy(native), y, 0.01)
    assert x.tobytes() == before


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::-1],
        lambda x: x[:, ::-2],
        lambda x: x.T,
        lambda x: np.broadcast_to(x[0], (5, 6)),
        np.asfortranarray,
        lambda x: np.frombuffer(x.tobytes(), dtype=np.float32),
        lambda x: x[0, 0],
        lambda x: x[:0],
        lambda x: np.rec.fromarrays([x.view(np.uint8)[:, :6], x], names="a,b")["b"],
    ],
    ids=[
        "flipped",
        "steps",
        "transposed",
        "broadcast",
        "fortran",
        "read-only",
        "0-d",
        "empty",
        "field",
    ],
)
def test_numpy_arrays_of_any_layout(view):
    x = view(np.ascontiguousarray(values(8, 6).numpy()))
    x = np.asarray(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = decompress(compress(x, BOUND))
    assert y.shape == x.shape
    assert np.all(np.abs(y.numpy().astype(np.float64) - x) <= 0.01)


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.full((8, 6), np.nan, np.float32),
        lambda: np.full((8, 12), np.nan, np.float32)[:, ::2],
        lambda: np.full((6, 8), np.nan, np.float32).T,
        lambda: np.full((8, 6), np.nan, np.float32)[::-1],
        lambda: np.full((8, 6), np.nan, np.float32)[:, ::-1],
        lambda: np.full((8, 6), np.nan, ">f4"),
    ],
    ids=["plain", "steps", "transposed", "flipped rows", "flipped columns", "big-endian"],
)
def test_numpy_out_is_written_or_refused(make):
    packed = compress(values(8, 6), BOUND)
    expected = decompress(packed).numpy()
    out = make()
    try:
        found = decompress(packed, out=out)
    except SpecError:
        assert np.isnan(out).all()
        return
    assert found is out
    assert np.array_equal(out.astype(np.float32), expected)


def test_out_of_wrong_shape_dtype_or_kind_is_refused():
    packed = compress(values(8, 6), BOUND)
    read_only = np.zeros((8, 6), np.float32)
    read_only.flags.writeable = False
    for out in (
        np.zeros((6, 8), np.float32),
        np.zeros((8, 6)),
        np.zeros((8, 6), object),
        read_only,
        torch.zeros(8, 7),
        torch.zeros(8, 6, device="meta"),
        [0.0] * 48,
        "out",
    ):
        assert_rejects(lambda out=out: decompress(packed, out=out), SpecError)


def test_out_that_requires_grad_is_written_or_refused():
    packed = compress(values(8, 6), BOUND)
    out = torch.zeros(8, 6, requires_grad=True)
    try:
        decompress(packed, out=out)
    except SpecError:
        return
    assert torch.equal(out.detach(), decompress(packed))


def test_gradients_do_not_follow():
    x = values(5, 5).requires_grad_()
    y = decompress(compress(x, BOUND))
    assert not y.requires_grad
    assert x.grad is None
    z = decompress(compress(x * 2, BOUND))
    assert_within_bound((x * 2).detach(), z, 0.01)


@pytest.mark.parametrize("codec", ["auto", "raw"])
@pytest.mark.parametrize(
    "dtype",
    ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "complex64"],
)
def test_other_dtypes_are_stored_exactly(codec, dtype):
    x = (values(4, 5) * 100).numpy().astype(np.int64).astype(dtype)
    for bound in (None, BOUND) if codec == "auto" else (None,):
        packed = compress(x, bound, codec=codec)
        assert packed.codec.codec_id == "raw"
        assert packed.error_bound is None
        assert_bits_equal(decompress(packed), torch.from_numpy(x))


@pytest.mark.parametrize("name", ["flat", "huffman", "rows", "raw", "half", "group4", "auto"])
def test_views_that_torch_keeps_lazily(name):
    """Negation and conjugation that torch has only noted down."""
    lazy = torch._neg_view(values(6, 8))
    assert lazy.is_neg()
    codec = build(name, BOUND)
    plain = codec.pack(lazy.resolve_neg())
    assert_bits_equal(codec.pack(lazy).payloads[0], plain.payloads[0])


def test_conjugate_views_are_stored_as_they_read():
    x = torch.complex(values(9), values(9)).conj()
    assert torch.equal(decompress(compress(x, codec="raw")), x.resolve_conj())


def nested(layout: torch.layout) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.nested.nested_tensor([values(2, 3), values(4, 3)], layout=layout)


def wrong_calls() -> dict[str, object]:
    x = values(4, 4)
    return {
        "no bound": lambda: compress(x),
        "loads of text": lambda: tersor.loads("text"),
        "bandwidth as text": lambda: create("auto", bound=BOUND, bandwidth_gbit_s="a"),
        "no bound for flat": lambda: compress(x, codec="flat"),
        "bound as number": lambda: compress(x, 0.1),
        "bound for raw": lambda: compress(x, BOUND, codec="raw"),
        "bound for half": lambda: compress(x, BOUND, codec="half"),
        "bound in addition to a codec": lambda: compress(x, BOUND, codec=create("raw")),
        "options in addition to a codec": lambda: compress(x, codec=create("raw"), level=3),
        "unknown option": lambda: compress(x, BOUND, codec="flat", level=3),
        "integers in flat": lambda: compress(x.long(), BOUND, codec="flat"),
        "complex in flat": lambda: compress(x.cfloat(), BOUND, codec="flat"),
        "dict": lambda: compress({"w": x}, BOUND),
        "list": lambda: compress([1.0, 2.0], BOUND),
        "none": lambda: compress(None, BOUND),
        "number": lambda: compress(1.0, BOUND),
        "numpy scalar": lambda: compress(np.float32(1.0), BOUND),
        "objects": lambda: compress(np.array([object()]), BOUND),
        "text": lambda: compress(np.array(["a"]), BOUND),
        "long double": lambda: compress(np.zeros(3, np.longdouble), BOUND),
        "dates": lambda: compress(np.array(["2020-01-01"], "datetime64[D]"), codec="raw"),
        "sparse": lambda: compress(x.to_sparse(), BOUND),
        "sparse in flat": lambda: compress(x.to_sparse(), BOUND, codec="flat"),
        "sparse in raw": lambda: compress(x.to_sparse(), codec="raw"),
        "values without bytes": lambda: compress(np.zeros(3, "V0"), codec="raw"),
        "values without fields": lambda: compress(np.zeros((2, 3), np.dtype([])), codec="raw"),
        "nested": lambda: compress(nested(torch.strided), BOUND),
        "nested in raw": lambda: compress(nested(torch.strided), codec="raw"),
        "jagged": lambda: compress(nested(torch.jagged), BOUND),
        "too many dimensions": lambda: compress(torch.zeros([1] * 40), BOUND),
        "no bound in create": lambda: create("flat"),
        "decompress of no Packed": lambda: decompress(b"bytes"),
    }


@pytest.mark.parametrize("what", wrong_calls())
def test_a_wrong_call_is_reported_in_one_sentence(what):
    assert_rejects(wrong_calls()[what], SpecError)


@pytest.mark.parametrize(
    ("call", "way_out"),
    [
        (lambda x: compress(x, 1e-3), "for example Bound.relative(1e-3)"),
        (lambda x: compress(x, 1e-3, codec="flat"), "for example Bound.relative(1e-3)"),
        (lambda x: compress(x, codec="flat", blocks=3), "it has lorenzo, block, base"),
        (lambda x: compress(x, BOUND, codec="flat", blocks=3), "it has lorenzo, block, base"),
        (lambda x: create("raw", level=3), "it has none"),
        (lambda x: compress({"w": x}, BOUND), "tersor.save(path, {...})"),
        (lambda x: compress(nested(torch.strided), BOUND), "x.unbind()"),
        (lambda x: compress(np.zeros(3, "V0"), BOUND), "an array of numbers"),
        (lambda x: create("flat"), "needs bound=Bound.absolute(e)"),
        (lambda x: create("auto"), "needs bound=Bound.absolute(e)"),
        (lambda x: compress(x, codec="flat"), "needs bound=Bound.absolute(e)"),
    ],
)
def test_a_wrong_call_is_told_the_way_out(call, way_out):
    assert way_out in str(assert_rejects(lambda: call(values(4, 4)), SpecError))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"a": values(3), "model": {"w": values(3)}}, "entry 'model' is a dict"),
        ({"a": values(3), "epoch": 3}, "entry 'epoch'"),
        ({"a": values(3), "names": np.array(["x"])}, "entry 'names'"),
        ({"a": values(3), "deep": torch.zeros([1] * 40)}, "entry 'deep'"),
        ({"a": values(3), "sparse": torch.eye(3).to_sparse()}, "entry 'sparse'"),
        (values(3), "tersor.save(path, {'x': x})"),
        ([values(3)], "tersor.save(path, {'x': x})"),
    ],
)
def test_save_names_what_it_cannot_write(tmp_path, arrays, words):
    path = tmp_path / "x.tsr"
    path.write_text("precious")
    error = assert_rejects(lambda: tersor.save(path, arrays, BOUND), SpecError)
    assert words in str(error)
    assert [found.read_text() for found in tmp_path.iterdir()] == ["precious"]


def test_save_replaces_a_file(tmp_path):
    for value in (1.0, 2.0):
        tersor.save(tmp_path / "x.tsr", {"x": torch.full((3,), value)}, BOUND)
    assert tersor.load(tmp_path / "x.tsr")["x"].tolist() == [2.0] * 3


def test_load_names_the_damaged_file(tmp_path):
    path = tmp_path / "x.tsr"
    tersor.save(path, {"x": values(300)}, BOUND)
    data = bytearray(path.read_bytes())
    for where in (3, 60, len(data) - 50, len(data) - 3):
        damaged = bytearray(data)
        damaged[where] ^= 1
        path.write_bytes(damaged)
        error = assert_rejects(lambda: tersor.load(path), CorruptDataError)
        assert str(error).startswith(f"'{path}': ")
        assert str(error).count(str(path)) == 1


@pytest.mark.parametrize(
    "codec", [None, 5, "gzip", "", [], {}, ["flat"], np.array(["auto", "raw"])]
)
def test_an_unknown_codec_is_told_with_those_known(codec):
    error = assert_rejects(lambda: compress(values(3), BOUND, codec=codec), UnknownCodecError)
    assert "flat" in str(error)


@pytest.mark.parametrize(
    "value", [-1, -1e-300, math.nan, math.inf, -math.inf, None, "0.1", True, 1j, [0.1], 10**400]
)
@pytest.mark.parametrize("kind", ["absolute", "relative"])
def test_impossible_bounds_are_refused(kind, value):
    assert_rejects(lambda: getattr(Bound, kind)(value), SpecError)


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("auto", {"bandwidth_gbit_s": "a"}),
        ("auto", {"bandwidth_gbit_s": np.array([1, 2])}),
        ("rows", {"entropy": np.array([1, 2])}),
        ("flat", {"block": []}),
    ],
)
def test_an_option_of_another_type_is_named(codec, options):
    error = assert_rejects(lambda: create(codec, bound=BOUND, **options), SpecError)
    assert min(options) in str(error)


def test_bounds_of_any_real_number_type():
    assert Bound.absolute(1) == Bound.absolute(1.0)
    assert Bound.absolute(np.float64(0.5)) == Bound.absolute(0.5)
    assert_rejects(lambda: Bound("percent", 1.0), SpecError)


@pytest.mark.parametrize("name", [*PAYLOADS, *AUTO])
def test_a_device_without_kernels_is_refused(name):
    x = torch.empty(4, 4, device="meta")
    with pytest.raises(TersorError) as caught:
        build(name, BOUND).pack(x)
    assert isinstance(caught.value, BackendUnavailableError | SpecError)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("device", "entropy"), [("cpu", "huffman"), ("cuda", "ans")])
def test_a_named_codec_takes_what_is_fast_on_the_tensors_device(device, entropy):
    x = SimpleNamespace(dtype=torch.float32, device=torch.device(device))
    assert resolve_codec("rows", BOUND, x).entropy == entropy
    assert resolve_codec("rows", BOUND, x, entropy="huffman").entropy == "huffman"
    given = create("rows", bound=BOUND)
    assert resolve_codec(given, None, x) is given


@pytest.mark.gpu
def test_rows_on_cuda_are_coded_with_rans_and_decoded_anywhere():
    x = values(64, 8).repeat(9, 1)
    packed = compress(x.cuda(), BOUND, codec="rows")
    assert packed.codec.entropy == "ans"
    assert_within_bound(x, decompress(packed).cpu(), 0.01)
    assert_within_bound(x, decompress(tersor.loads(tersor.dumps(packed))).cpu(), 0.01)


@pytest.mark.gpu
def test_a_cuda_tensor_is_refused_until_it_has_kernels_or_comes_back():
    x = values(64, 64).cuda()
    try:
        packed = compress(x, BOUND)
    except BackendUnavailableError:
        with tersor.use_backend("reference"):
            packed = compress(x, BOUND)
            y = decompress(packed)
    else:
        y = decompress(packed)
    assert y.device == x.device
    assert_within_bound(x.cpu(), y.cpu(), 0.01)


def test_save_and_load(tmp_path):
    arrays = {"a": values(30, 4), "b": values(5).numpy(), "steps": torch.arange(6)}
    tersor.save(tmp_path / "x.tsr", arrays, BOUND)
    found = tersor.load(tmp_path / "x.tsr")
    assert list(found) == ["a", "b", "steps"]
    assert_within_bound(arrays["a"], found["a"], 0.01)
    assert_within_bound(torch.from_numpy(arrays["b"]), found["b"], 0.01)
    assert torch.equal(found["steps"], arrays["steps"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["flat", "huffman", "ans", "rows", "group4", "half"])
def test_more_than_2_to_the_31_values(name):
    """Zeros with a few marks near the end, past every 32-bit position; needs 12 GiB."""
    available_kib = Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]
    if int(available_kib) < 14 * 2**20:
        pytest.skip("needs 14 GiB of free memory")
    numel = 2**31 + 70_000
    x = torch.zeros(numel, dtype=torch.float16)
    x[2**31 - 1], x[2**31 + 5], x[-1] = 1.5, float("nan"), -2.0
    packed = build(name, BOUND).pack(x if name != "rows" else x.view(-1, 16))
    assert len(packed.payloads) == 3
    y = decompress(packed).view(-1)
    marks = [0, 2**30 - 1, 2**30, 2**31 - 2, 2**31 - 1, 2**31, 2**31 + 4, 2**31 + 5, numel - 1]
    # a group's largest value is exact, and the zeros around it too
    assert_within_bound(x[marks], y[marks], 0.01)
    assert int(torch.count_nonzero(y)) == 3


@pytest.mark.slow
def test_a_huge_expanded_tensor():
    """More than 2**31 values that share one place in memory; needs 13 GiB for a moment."""
    x = torch.full((1,), 0.25, dtype=torch.float16).expand(2**31 + 8)
    packed = compress(x, Bound.absolute(0.001), codec="flat", base=True)
    assert packed.info.numel == 2**31 + 8
    assert packed.nbytes < 2**28
    y = decompress(packed)
    marks = [0, 2**30, 2**31 - 1, 2**31, -1]
    assert_within_bound(x[marks], y[marks], 0.001)
