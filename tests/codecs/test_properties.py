"""Whatever the shape, dtype, bound, codec and values: the promise holds."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tersor import Bound, decompress
from tersor.types import FLOAT_DTYPES
from tests.checks import assert_bits_equal, assert_within_bound
from tests.codecs.variants import BOUNDED, FIXED, PAYLOADS, build
from tests.one_by_one import decode_one

quick = settings(
    max_examples=500,
    deadline=timedelta(seconds=20),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
SPECIAL = [0.0, -0.0, 1.0, -1.0, 1e-40, 5e-324, 3.4e38, -3.4e38, 65504.0, 1e300]
SPECIAL += [float("nan"), float("inf"), float("-inf"), 0.1, 0.15, 2.0**-14, 2.0**-24]

shapes = st.one_of(
    npst.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=9),
    npst.array_shapes(min_dims=1, max_dims=2, min_side=0, max_side=70),
)
values = st.one_of(
    st.sampled_from(SPECIAL),
    st.floats(width=32),
    st.floats(-1, 1, width=32),
    st.integers(-300, 300).map(lambda k: k / 255),
)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """A tensor of few distinct values in runs and noise, so that every coder has work."""
    shape = draw(shapes)
    numel = int(np.prod(shape, dtype=np.int64))
    pool = torch.tensor(draw(st.lists(values, min_size=1, max_size=12)), dtype=torch.float64)
    seed = draw(st.integers(0, 2**32 - 1))
    generator = torch.Generator().manual_seed(seed)
    x = pool[torch.randint(0, len(pool), (numel,), generator=generator)]
    noise = draw(st.sampled_from([0.0, 1e-3, 1.0, 1e6]))
    x = x + noise * torch.randn(numel, generator=generator, dtype=torch.float64)
    if draw(st.booleans()):
        x = x.cumsum(0)
    dtype = draw(st.sampled_from(FLOAT_DTYPES))
    return x.view(shape).to(dtype)


bounds = st.one_of(
    st.floats(1e-12, 2.0).map(Bound.relative),
    st.floats(0.0, allow_infinity=False, allow_nan=False).map(Bound.absolute),
    st.sampled_from([Bound.absolute(0.5), Bound.relative(0.0), Bound.absolute(5e-324)]),
)


@quick
@given(tensors(), bounds, st.sampled_from(list(BOUNDED)), st.integers(1, 20))
def test_bound_holds_whatever_comes(x, bound, variant, num_chunks):
    codec = build(variant, bound)
    packed = codec.pack(x, chunk_values=1 + x.numel() // num_chunks)
    assert_within_bound(x, decompress(packed), packed.error_bound)
    assert packed.error_bound is not None
    if bound.kind == "absolute":
        assert packed.error_bound == bound.value


@quick
@given(tensors(), st.sampled_from(list(FIXED)))
def test_fixed_sizes_hold_whatever_comes(x, variant):
    codec = build(variant)
    packed = codec.pack(x)
    assert packed.nbytes == codec.max_nbytes(tuple(x.shape), x.dtype)
    decoded = decompress(packed)
    assert decoded.shape == x.shape
    if variant == "raw":
        assert_bits_equal(decoded, x)
    if variant.startswith("group"):
        assert bool(decoded.isnan()[x.isnan()].all())


@quick
@given(st.binary(max_size=400), tensors(), st.sampled_from(list(PAYLOADS)))
def test_arbitrary_bytes_decode_or_are_refused(data, like, variant):
    from tersor.errors import CorruptDataError

    codec = build(variant, Bound.absolute(0.1))
    payload = torch.frombuffer(bytearray(data + b"\0"), dtype=torch.uint8)[: len(data)]
    out = torch.zeros(like.shape, dtype=like.dtype)
    try:
        decode_one(codec, payload, out)
    except CorruptDataError:
        return
