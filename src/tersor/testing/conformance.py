"""One check per promise of ``tersor.Codec``, run over dtypes, bounds and adverse inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from tersor.codecs import Codec, Packed
from tersor.codecs.arguments import checked_payload, materialised
from tersor.codecs.plugins import Attempt
from tersor.errors import CorruptDataError
from tersor.kernels.batch.encoded_list import EncodedList, finish_decoding, settled
from tersor.kernels.quantize import finite_range
from tersor.kernels.runtime.scratch import scratch
from tersor.raw_bytes import as_bytes
from tersor.testing.asserts import (
    assert_bits_equal,
    assert_config_roundtrip,
    assert_within_bound,
    require,
)
from tersor.testing.inputs import inputs, integers
from tersor.types import DTYPE_NAMES, FLOAT_DTYPES, Bound

BOUNDS: Final = (
    Bound.relative(1e-1),
    Bound.relative(1e-3),
    Bound.relative(1e-6),
    Bound.absolute(0.0),
    Bound.absolute(1e-310),
    Bound.absolute(0.1),
    Bound.absolute(1e300),
)
"""Bounds from one that allows no error to one that allows any."""

_CHUNK_VALUES: Final = 100
"""Values per chunk when a tensor is cut; the inputs have a few thousand values."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of checking one promise; ``problem`` is the first violation, empty if there is none."""

    name: str
    problem: str = ""

    @property
    def passed(self) -> bool:
        """True if the promise held in all cases."""
        return not self.problem


def check_codec(codec: Codec) -> None:
    """Fail unless ``codec`` keeps every promise of ``tersor.Codec``.

    A codec that takes a bound is checked with its own bound and with ``BOUNDS``. Its class must be
    registered by ``tersor.register`` or an entry point.

    Raises:
        AssertionError: a promise is broken; the message names each one, with its first failing case.

    Example:
        >>> from tersor import create
        >>> check_codec(create("raw"))
    """
    broken = [f"{result.name}: {result.problem}" for result in run_checks(codec) if result.problem]
    require(not broken, "\n".join([f"codec {codec.codec_id!r} breaks its promises", *broken]))


def run_checks(codec: Codec) -> list[CheckResult]:
    """Run every check that applies to ``codec``, regardless of earlier failures.

    Example:
        >>> from tersor import create
        >>> [result.passed for result in run_checks(create("raw"))]
        [True, True, True, True, True, True, True, True, True]
    """
    found = [CheckResult("config goes through JSON", _problem(assert_config_roundtrip, codec))]
    for name, check in CHECKS.items():
        if check in (_bounded, _in_lists) and not codec.takes_bound():
            continue
        bounds = BOUNDS if check is _bounded else ()
        found.append(CheckResult(name, next(_problems(check, codec, bounds), "")))
    return found


def encode_twice(codec: Codec, x: Tensor) -> Packed:
    """Encode twice; fail unless the bytes are equal and ``x`` is unchanged."""
    before = x.clone()
    packed = codec.pack(x)
    # different stale bytes in the kernels' scratch memory
    scratch(1 << 18)[:] = 0x5A
    again = codec.pack(x)
    assert_bits_equal(before, x)
    for one, other in zip(packed.payloads, again.payloads, strict=True):
        assert_bits_equal(one, other)
    return packed


def assert_size(codec: Codec, packed: Packed) -> None:
    """Fail unless the payload of a single-chunk tensor has a size that ``max_nbytes`` allows."""
    for payload in packed.payloads:
        is_bytes = payload.dtype == torch.uint8 and payload.dim() == 1
        require(is_bytes, f"a payload is {payload.dtype} of {payload.dim()} dimensions, not bytes")
    most = codec.max_nbytes(packed.info.shape, packed.info.dtype)
    wrote = f"{packed.nbytes} bytes written, max_nbytes says {most}"
    require(packed.nbytes <= most, wrote)
    if codec.size_kind == "fixed":
        require(packed.nbytes == most, f"{wrote}, and size_kind that this is exact")


def decode_into_poison(packed: Packed) -> Tensor:
    """Decode from memory that ends with the payload; fail unless all of ``out`` is written."""
    copies = tuple(payload.clone() for payload in packed.payloads)
    copy = replace(packed, payloads=copies)
    found = []
    for byte in (0xFF, 0x5A):
        out = torch.empty(packed.info.shape, dtype=packed.info.dtype)
        as_bytes(out).fill_(byte)
        require(packed.codec.unpack(copy, out) is out, "unpack returns something else than out")
        found.append(out)
    assert_bits_equal(*found)
    return found[0]


def assert_promised(codec: Codec, packed: Packed, x: Tensor) -> None:
    """Fail unless the error promised by ``packed`` is the bound that ``codec`` was given."""
    promised = packed.error_bound
    require(promised is not None, "resolve_bound promises no error")
    low, high = finite_range(x).tolist()
    if low <= high:
        asked = codec.own_bound().resolve(low, high)
        require(promised == asked, f"the bound is {asked!r}, resolve_bound says {promised!r}")


def _bounded(codec: Codec, x: Tensor) -> None:
    if x.dtype not in FLOAT_DTYPES:
        return
    packed = codec.pack(x)
    assert_promised(codec, packed, x)
    assert_within_bound(x, codec.unpack(packed), packed.error_bound or 0.0)


def _keeps_what_is_not_finite(codec: Codec, x: Tensor) -> None:
    if not x.dtype.is_floating_point:
        return
    decoded, wide = codec.unpack(codec.pack(x)).double(), x.double()
    require(bool(decoded[wide.isnan()].isnan().all()), "a NaN came back as a number")
    require(not bool(decoded[wide.isinf()].isfinite().any()), "an infinity came back finite")


def _stays_finite(codec: Codec, x: Tensor) -> None:
    if not (x.dtype.is_floating_point or x.dtype.is_complex):
        return
    wide = torch.complex128 if x.dtype.is_complex else torch.float64
    # larger values may exceed a codec's range, and a NaN may corrupt the values coded with it
    if bool((x.to(wide).abs() <= 1).all()):
        decoded = codec.unpack(codec.pack(x)).to(wide)
        require(bool(decoded.isfinite().all()), "a finite value came back as NaN or infinity")


def _any_layout(codec: Codec, x: Tensor) -> None:
    plain = codec.pack(x.clone(memory_format=torch.contiguous_format))
    for one, other in zip(plain.payloads, codec.pack(x).payloads, strict=True):
        assert_bits_equal(one, other)
    room = torch.zeros((*x.shape, 2), dtype=x.dtype)
    codec.unpack(plain, room[..., 1])
    assert_bits_equal(codec.unpack(plain), room[..., 1])
    require(not bool(as_bytes(room[..., 0]).any()), "decode wrote outside a strided out")


def _in_chunks(codec: Codec, x: Tensor) -> None:
    packed = codec.pack(x, chunk_values=_CHUNK_VALUES)
    decoded = decode_into_poison(packed)
    if codec.takes_bound() and x.dtype in FLOAT_DTYPES and packed.error_bound is not None:
        assert_within_bound(x, decoded, packed.error_bound)


def _in_lists(codec: Codec, x: Tensor) -> None:
    """Check that a list honours the bound of each of its tensors instead of the codec's own."""
    is_bounded = codec.takes_bound() and not codec.is_selector
    if not is_bounded or x.dtype not in FLOAT_DTYPES or x.numel() == 0:
        return
    plain = materialised(x)
    bounds = [Bound.absolute(0.25), Bound.relative(1e-3), Bound.absolute(1e-3)]
    (encoded,) = settled([codec.encode([plain] * len(bounds), bounds)])
    payloads = [checked_payload(payload) for payload in encoded.payloads()]
    outs = [torch.empty_like(plain) for _ in bounds]
    finish_decoding(codec.decode(EncodedList.apart(payloads), outs), payloads, outs)
    for bound, out in zip(bounds, outs, strict=True):
        promised = replace(codec, bound=bound).resolve_bound(plain)  # type: ignore[call-arg]
        assert_within_bound(plain, out, promised or 0.0)


def _refuses_other_bytes(codec: Codec, x: Tensor) -> None:
    packed = codec.pack(x)
    (payload,) = packed.payloads
    extra = payload.new_full((9,), 7)
    for wrong in (
        payload[:0],
        payload[:-1],
        payload[: payload.numel() // 2],
        torch.cat([payload, extra]),
    ):
        if wrong.numel() == payload.numel():
            continue
        refused = False
        try:
            codec.unpack(replace(packed, payloads=(wrong.clone(),)))
        except CorruptDataError:
            refused = True
        sizes = f"{wrong.numel()} bytes instead of {payload.numel()} are decoded"
        # a payload of another size may be valid for another tensor, unless it is empty
        is_wrong = packed.codec.size_kind == "fixed" or (wrong.numel() == 0 and x.numel() > 0)
        require(refused or not is_wrong, f"{sizes}; raise CorruptDataError")


CHECKS: Final[dict[str, Callable[[Codec, Tensor], object]]] = {
    "same bytes every time": encode_twice,
    "size as max_nbytes says": lambda codec, x: assert_size(codec, codec.pack(x)),
    "decoding fills out": lambda codec, x: decode_into_poison(codec.pack(x)),
    "bound holds": _bounded,
    "NaN and infinities stay": _keeps_what_is_not_finite,
    "small values stay finite": _stays_finite,
    "any layout": _any_layout,
    "any chunk size": _in_chunks,
    "lists keep their bounds": _in_lists,
    "other bytes are refused": _refuses_other_bytes,
}


def _problems(
    check: Callable[[Codec, Tensor], object], codec: Codec, bounds: Sequence[Bound]
) -> Iterator[str]:
    """Yield the problems a check finds for ``codec``, and for the same codec with each of ``bounds``."""
    for bound in (None, *bounds):
        with Attempt() as attempt:
            variant = codec if bound is None else replace(codec, bound=bound)  # type: ignore[call-arg]
            dtypes = [dtype for dtype in DTYPE_NAMES if variant.supports(dtype)]
        if attempt.error is not None:
            yield f"{'' if bound is None else f'{bound}: '}it raised {attempt.message}"
            continue
        for dtype in dtypes:
            tensors = inputs(dtype) if dtype in FLOAT_DTYPES else integers(dtype)
            for label, x in tensors.items():
                problem = _problem(check, variant, x)
                if problem:
                    yield f"{_case(variant, label, x)}: {problem}"


def _case(codec: Codec, label: str, x: Tensor) -> str:
    bound = f", {codec.own_bound()}" if codec.takes_bound() else ""
    return f"{label} of {str(x.dtype).removeprefix('torch.')}{bound}"


def _problem(check: Callable[..., object], *arguments: Any) -> str:
    """Return the problem a check found, in one line; empty if there is none."""
    with Attempt() as attempt:
        check(*arguments)
    if attempt.error is None:
        return ""
    if isinstance(attempt.error, AssertionError):
        return " ".join(str(attempt.error).split())
    return f"it raised {attempt.message}"
