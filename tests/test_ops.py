from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest
import torch
from torch._dynamo.testing import CompileCounter, CompileCounterWithBackend

import tersor
from tersor import Bound, Codec, CorruptDataError, GraphCodec, SpecError, UnknownCodecError, create
from tersor.codecs import registry
from tests.one_by_one import OneByOne

FIXED = {
    "half": create("half"),
    "fp8": create("fp8"),
    "group8": create("group8"),
    "group4-hadamard": create("group4", hadamard=True, seed=3),
}
BOUNDED = {
    "flat": create("flat", bound=Bound.absolute(0.01)),
    "rows": create("rows", bound=Bound.relative(0.01)),
}
CODECS = FIXED | BOUNDED
LAYOUTS = {
    "plain": lambda x: x,
    "transposed": lambda x: x.mT,
    "strided": lambda x: x[::2, 1::3],
    "offset": lambda x: x.view(-1)[3:],
    "expanded": lambda x: x[:1].expand(4, -1),
    "scalar": lambda x: x[0, 0],
    "empty": lambda x: x[:0],
}
# torch 2.11 warns of itself when it imports its own compiler
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _compiled(function, backend="aot_eager", **options):
    return torch.compile(function, fullgraph=True, backend=backend, **options)


def _sized_by_values():
    return torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)


def _same_bits(a, b):
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and tersor.raw_bytes.as_bytes(a).equal(tersor.raw_bytes.as_bytes(b))
    )


class Layer(torch.nn.Module):
    """Uses its input as it comes over the wire, and as a payload; every float has one rounding."""

    def __init__(self, codec: Codec) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6, 24))
        self.wire = GraphCodec(codec)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        doubled = self.wire.round_trip(2 * x)
        payload = self.wire.encode(x + 1)
        received = self.wire.decode(payload, x.shape, x.dtype)
        return self.weight * doubled, payload, received


def _results(layer, forward, x):
    """Return everything a training step computes."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    y, payload, received = forward(x)
    y.backward(torch.linspace(-1, 1, y.numel(), device=y.device).view_as(y))
    return y.detach(), payload, received, x.grad, layer.weight.grad


def _check_compiled_step(codec, backend, device):
    layer = Layer(codec).to(device)
    x = torch.randn(6, 24, device=device)
    with _sized_by_values():
        compiled = _results(layer, _compiled(layer, backend), x)
    for result, expected in zip(compiled, _results(layer, layer, x), strict=True):
        assert _same_bits(result, expected)


def _check_replayed_step(codec):
    layer = Layer(codec).cuda()
    step = _compiled(layer, "inductor", mode="reduce-overhead")
    with _sized_by_values():
        # the first call warms up, the second records, the third replays
        for _ in range(3):
            x = torch.randn(6, 24, device="cuda")
            torch.compiler.cudagraph_mark_step_begin()
            replayed = [result.clone() for result in _results(layer, step, x)]
            for result, expected in zip(replayed, _results(layer, layer, x), strict=True):
                assert _same_bits(result, expected)


def _check_operators(codec, device):
    spec = GraphCodec(codec)._spec
    x = torch.randn(6, 24, device=device)
    payload = torch.ops.tersor.encode(x, spec)
    torch.library.opcheck(torch.ops.tersor.encode.default, (x, spec))
    torch.library.opcheck(torch.ops.tersor.decode.default, (payload, spec, x.shape, x.dtype))
    for source in (x, x.mT, x.clone().requires_grad_(), x[:0], x.bfloat16()):
        torch.library.opcheck(torch.ops.tersor.round_trip.default, (source, spec))


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_the_operators_keep_torchs_rules(codec):
    _check_operators(codec, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_the_operators_keep_torchs_rules_on_cuda(codec):
    _check_operators(codec, "cuda")


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_compiled_step_gives_the_bits_of_an_eager_one(codec):
    _check_compiled_step(codec, "aot_eager", "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_compiled_step_gives_the_bits_of_an_eager_one_on_cuda(codec):
    # no pool of compiling processes that outlives the test
    with torch._inductor.config.patch(compile_threads=1):
        _check_compiled_step(codec, "inductor", "cuda")


@pytest.mark.gpu
# torch itself captures an empty graph first, to make a pool of memory
@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_step_of_cuda_graphs_gives_the_bits_of_an_eager_one(codec):
    with torch._inductor.config.patch(compile_threads=1):
        _check_replayed_step(codec)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_payload_and_values_are_the_codecs_own(codec, layout):
    x = layout(torch.randn(12, 24))
    wire = GraphCodec(codec)
    payload = wire.encode(x)
    expected = codec.pack_chunk(x.contiguous())
    assert payload.equal(expected)
    back = wire.decode(payload, x.shape, x.dtype)
    assert back.is_contiguous()
    assert _same_bits(back, codec.unpack(codec.pack(x)))
    assert _same_bits(wire.round_trip(x), back)


def test_the_compiler_sees_one_operator_and_no_kernel():
    seen = []

    def backend(module, inputs):
        seen.extend(node.target for node in module.graph.nodes if node.op == "call_function")
        return module.forward

    wire = GraphCodec(CODECS["flat"])
    _compiled(wire.round_trip, backend)(torch.randn(8))
    assert seen == [torch.ops.tersor.round_trip.default]


def test_the_gradient_passes_unchanged():
    x = torch.randn(5, 4, requires_grad=True)
    y = GraphCodec(create("group4")).round_trip(x)
    assert not y.detach().equal(x.detach())
    gradient = torch.randn(5, 4)
    y.backward(gradient)
    assert x.grad.equal(gradient)


def test_a_payload_has_no_gradient():
    x = torch.randn(5, 4, requires_grad=True)
    wire = GraphCodec(create("half"))
    payload = wire.encode(x)
    assert not payload.requires_grad
    assert not wire.decode(payload, x.shape, x.dtype).requires_grad


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_another_batch_size_compiles_once_more_and_then_never(codec):
    wire, counter = GraphCodec(codec), CompileCounterWithBackend("aot_eager")

    def step(x):
        payload = wire.encode(x)
        return payload, wire.round_trip(x) + wire.decode(payload, x.shape, x.dtype)

    with _sized_by_values():
        compiled = _compiled(step, counter)
        for num_rows in (4, 5, 6, 130):
            x = torch.randn(num_rows, 24)
            for result, expected in zip(compiled(x), step(x), strict=True):
                assert _same_bits(result, expected)
    assert counter.frame_count == 2


def test_equal_codecs_share_a_compiled_function_and_others_do_not():
    counter = CompileCounterWithBackend("eager")
    step = _compiled(lambda x, wire: wire.round_trip(x), counter)
    x = torch.randn(3, 64)
    for group in (32, 64, 32, 64):
        for hadamard in (False, True):
            codec = create("group4", group=group, hadamard=hadamard)
            assert _same_bits(step(x, GraphCodec(codec)), codec.unpack(codec.pack(x)))
    assert counter.frame_count == 4


def test_a_size_that_depends_on_values_breaks_the_graph_but_not_the_result():
    wire = GraphCodec(CODECS["flat"])
    x = torch.randn(100)
    step = torch.compile(lambda x: wire.encode(x * 2), backend="aot_eager")
    assert step(x).equal(wire.encode(x * 2))


def test_a_bounded_codec_keeps_its_bound_in_a_compiled_step():
    wire = GraphCodec(create("flat", bound=Bound.absolute(0.01)))
    x = torch.cat([torch.randn(1000), torch.tensor([float("nan"), float("inf"), 1e30])])
    y = _compiled(wire.round_trip)(x)
    assert torch.equal(y[1001:], x[1001:])
    assert y[1000].isnan()
    assert (y[:1000].double() - x[:1000].double()).abs().max() <= 0.01


def test_a_model_that_holds_one_can_be_copied():
    layer = Layer(create("group4", group=64))
    twin = copy.deepcopy(layer)
    x = torch.randn(6, 24)
    assert twin.wire.codec == layer.wire.codec
    assert _same_bits(twin(x)[1], layer(x)[1])


def test_raw_takes_dtypes_that_are_no_floats():
    x = torch.arange(6, dtype=torch.int16).view(2, 3)
    assert _compiled(GraphCodec(create("raw")).round_trip)(x).equal(x)


@dataclass(frozen=True, kw_only=True)
class Signs(OneByOne):
    codec_id: ClassVar[str] = "signs"
    size_kind: ClassVar[Literal["fixed", "bounded"]] = "fixed"
    guarantee: ClassVar[str] = "the sign of every value"

    def write(self, x, error_bound):
        return (x >= 0).view(-1).to(torch.uint8)

    def read(self, payload, out):
        out.view(-1).copy_(payload * 2.0 - 1.0)

    def max_nbytes(self, shape, dtype):
        return 2 * torch.Size(shape).numel()


@pytest.mark.parametrize(
    ("codec", "error", "sentence"),
    [
        ("group8", SpecError, "as in GraphCodec"),
        (create("auto", bound=Bound.absolute(0.1)), SpecError, "choose once"),
        (Signs(), UnknownCodecError, "unknown codec 'signs'"),
    ],
    ids=["a name", "auto", "not registered"],
)
def test_what_is_no_usable_codec_is_refused_before_the_step(codec, error, sentence):
    with pytest.raises(error, match=sentence):
        GraphCodec(codec)


def test_a_codec_that_took_a_known_id_is_refused():
    @dataclass(frozen=True, kw_only=True)
    class Half(Signs):
        codec_id: ClassVar[str] = "half"

    with pytest.raises(SpecError, match="another codec is registered as 'half'"):
        GraphCodec(Half())


def test_a_fixed_codec_of_another_size_is_refused(monkeypatch):
    monkeypatch.setitem(registry._codecs, "signs", Signs)
    with pytest.raises(SpecError, match="wrote 5 bytes where its max_nbytes says 10"):
        GraphCodec(Signs()).encode(torch.randn(5))


def test_an_unsupported_dtype_is_refused_eagerly_and_while_compiling():
    wire = GraphCodec(create("half"))
    sentence = "codec 'half' cannot encode torch.int32; convert to float32"
    x = torch.arange(4, dtype=torch.int32)
    payload = torch.zeros(8, dtype=torch.uint8)
    for function in (wire.encode, wire.round_trip, lambda x: wire.decode(payload, (4,), x.dtype)):
        with pytest.raises(SpecError, match=sentence):
            function(x)
        with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match=sentence):
            _compiled(function)(x)


def test_more_values_than_a_payload_holds_are_refused():
    x = torch.zeros(1).expand(2**30 + 1)
    with pytest.raises(SpecError, match="split the tensor"):
        GraphCodec(create("half")).encode(x)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_damaged_payload_is_refused(codec):
    wire = GraphCodec(codec)
    payload = wire.encode(torch.randn(4, 8))
    with pytest.raises(CorruptDataError):
        wire.decode(payload[:-1], (4, 8), torch.float32)


def test_a_new_seed_every_step_compiles_once():
    wire = GraphCodec(create("group4", group=32))
    counter = CompileCounter()

    @torch.compile(fullgraph=True, backend=counter)
    def step(x, seed):
        return wire.encode(x, seed), wire.round_trip(x, seed)

    x = torch.randn(7, 96)
    seed = torch.zeros((), dtype=torch.int64)
    seen = set()
    for k in range(100):
        seed.fill_(k)
        payload, y = step(x, seed)
        expected = create("group4", group=32, seed=k)
        assert payload.equal(expected.pack_chunk(x))
        assert y.equal(expected.unpack(expected.pack(x)))
        seen.add(bytes(payload.tolist()))
    assert counter.frame_count == 1
    assert len(seen) == 100


@pytest.mark.parametrize("seed", [0, 5, 2**63, 2**64 - 1])
def test_a_seed_may_be_a_number(seed):
    wire = GraphCodec(create("group8"))
    x = torch.randn(300)
    assert wire.encode(x, seed).equal(create("group8", seed=seed).pack_chunk(x))


@pytest.mark.parametrize(
    ("codec", "seed", "sentence"),
    [
        ("half", 1, "does not round stochastically"),
        ("group4", 1.5, "whole number"),
        ("group4", -1, "whole number"),
        ("group4", True, "whole number"),
        ("group4", 2**64, "whole number"),
        ("group4", torch.zeros(2, dtype=torch.int64), "one int64"),
        ("group4", torch.zeros(()), "one int64"),
    ],
)
def test_a_seed_that_means_nothing_is_refused(codec, seed, sentence):
    with pytest.raises(SpecError, match=sentence):
        GraphCodec(create(codec)).encode(torch.randn(4), seed)
