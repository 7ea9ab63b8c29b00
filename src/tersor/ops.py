"""Codecs as custom operators, opaque to ``torch.compile``: it sees shapes, never the kernels.

``torch.ops.tersor.encode``, ``decode`` and ``round_trip`` identify their codec by its spec, which is the
config in canonical JSON. The compiler guards a string by its value, so equal codecs share one compiled
function and a different codec triggers compilation. It would guard a codec object by identity (torch
2.13) or reject it (2.11). ``GraphCodec`` holds the string.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import torch

from tersor.chunks import MAX_CHUNK_VALUES
from tersor.codecs import Codec, from_config
from tersor.codecs.arguments import check_payload_size, checked_out, checked_payload, materialised
from tersor.codecs.codec import check_written
from tersor.codecs.group import check_seed
from tersor.errors import SpecError
from tersor.kernels.batch.encoded_list import EncodedList, finish_decoding, settled
from tersor.types import TensorInfo


class GraphCodec:
    """A codec for use inside compiled functions; create it once, outside of them.

    Takes strided tensors of any layout and device, up to 2**30 values each. Bytes and values are those of
    the codec itself, compiled or not. Results are contiguous.

    Raises:
        SpecError: the codec is a selector such as ``auto``, or another one is registered under its id.
        UnknownCodecError: the codec is not registered.

    Example:
        >>> wire = GraphCodec(from_config({"id": "half", "version": 1}))
        >>> wire.round_trip(torch.tensor([1.0, 0.1])).tolist()
        [1.0, 0.0999755859375]
    """

    __slots__ = ("_codec", "_spec")

    def __init__(self, codec: Codec) -> None:
        if not isinstance(codec, Codec):
            raise SpecError(
                "expected a codec, as in GraphCodec(tersor.create('group8')), "
                f"not {type(codec).__name__}"
            )
        if codec.is_selector:
            raise SpecError(
                f"codec {codec.codec_id!r} chooses per tensor: choose once, "
                "with tersor.compress(x, bound).codec"
            )
        self._codec = codec
        self._spec = json.dumps(codec.to_config(), sort_keys=True, separators=(",", ":"))
        if _codec_of(self._spec) != codec:
            raise SpecError(f"another codec is registered as {codec.codec_id!r}; rename this one")

    @property
    def codec(self) -> Codec:
        """The codec with its options."""
        return self._codec

    def __repr__(self) -> str:
        return f"GraphCodec({self._codec!r})"

    def encode(self, x: torch.Tensor, seed: int | torch.Tensor | None = None) -> torch.Tensor:
        """Encode into one uint8 payload on the same device, without a gradient.

        ``seed`` replaces the codec's own seed for stochastic rounding. If it is one int64 in a tensor on
        the CPU, a compiled function can take a new seed every step without recompiling.

        The size of the payload is ``codec.max_nbytes(shape, dtype)`` if ``codec.size_kind`` is
        ``"fixed"``. Otherwise it depends on the values, and ``torch.compile(fullgraph=True)`` needs
        ``torch._dynamo.config.capture_dynamic_output_shape_ops``.

        Raises:
            SpecError: the codec does not support the dtype, layout or size, or takes no seed.
        """
        return _ENCODE(x.detach(), self._spec, _as_tensor(seed))

    def decode(
        self, payload: torch.Tensor, shape: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        """Decode the payload of a tensor of this shape and dtype.

        Raises:
            SpecError: the codec does not support ``dtype``.
            CorruptDataError: the payload is not one that this codec writes for the shape.
        """
        return _DECODE(payload, self._spec, shape, dtype)

    def round_trip(self, x: torch.Tensor, seed: int | torch.Tensor | None = None) -> torch.Tensor:
        """Encode and decode ``x``; the gradient passes through unchanged.

        ``seed`` and errors are those of ``encode``.
        """
        return _ROUND_TRIP(x, self._spec, _as_tensor(seed))


def _as_tensor(seed: int | torch.Tensor | None) -> torch.Tensor | None:
    if seed is None or isinstance(seed, torch.Tensor):
        return seed
    check_seed(seed)
    # the same 64 bits, reinterpreted as a signed number
    signed = seed - (1 << 64) if seed >> 63 else seed
    return torch.tensor(signed, dtype=torch.int64, device="cpu")


@lru_cache(maxsize=1024)
def _codec_of(spec: str) -> Codec:
    return from_config(json.loads(spec))


def _encode(x: torch.Tensor, spec: str, seed: torch.Tensor | None = None) -> torch.Tensor:
    codec, info = _codec_of(spec), TensorInfo.of(x)
    codec.check_supported(info.dtype)
    if info.numel > MAX_CHUNK_VALUES:
        raise SpecError(f"one payload holds at most {MAX_CHUNK_VALUES} values; split the tensor")
    options: dict[str, Any] = {} if seed is None else {"seed": _seed_of(codec, seed)}
    (encoded,) = settled([codec.encode([materialised(x)], **options)])
    (payload,) = encoded.payloads()
    # compiled code would access memory beyond a payload of the wrong size
    check_written(codec, payload.numel(), info.shape, info.dtype)
    return payload


def _seed_of(codec: Codec, seed: torch.Tensor) -> int:
    """Return the seed as a number; it must be on the CPU, so reading it waits for no kernel."""
    if not codec.takes_seed:
        raise SpecError(f"codec {codec.codec_id!r} does not round stochastically; leave seed out")
    if seed.numel() != 1 or seed.dtype != torch.int64 or seed.device.type != "cpu":
        raise SpecError("seed must be a whole number, or one int64 in a tensor on the CPU")
    return int(seed) & 0xFFFFFFFFFFFFFFFF


def _encode_fake(x: torch.Tensor, spec: str, seed: torch.Tensor | None = None) -> torch.Tensor:
    del seed
    codec = _codec_of(spec)
    codec.check_supported(x.dtype)
    if codec.size_kind == "fixed":
        return x.new_empty(codec.max_nbytes(tuple(x.shape), x.dtype), dtype=torch.uint8)
    # the bound on a dynamic size must be a number, which a symbolic shape does not give
    is_static = all(type(size) is int for size in x.shape)
    most = codec.max_nbytes(tuple(x.shape), x.dtype) if is_static else None
    return x.new_empty(torch.library.get_ctx().new_dynamic_size(max=most), dtype=torch.uint8)


def _decode(
    payload: torch.Tensor, spec: str, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    codec, info = _codec_of(spec), TensorInfo(tuple(shape), dtype)
    codec.check_supported(dtype)
    check_payload_size(payload, info.numel)
    out = checked_out(None, info, payload.device)
    payload = checked_payload(payload)
    finish_decoding(codec.decode(EncodedList.apart([payload]), [out]), [payload], [out])
    return out


def _decode_fake(
    payload: torch.Tensor, spec: str, shape: Sequence[int], dtype: torch.dtype
) -> torch.Tensor:
    _codec_of(spec).check_supported(dtype)
    return payload.new_empty(shape, dtype=dtype)


def _round_trip(x: torch.Tensor, spec: str, seed: torch.Tensor | None = None) -> torch.Tensor:
    return _decode(_encode(x, spec, seed), spec, x.shape, x.dtype)


def _round_trip_fake(x: torch.Tensor, spec: str, seed: torch.Tensor | None = None) -> torch.Tensor:
    del seed
    _codec_of(spec).check_supported(x.dtype)
    return x.new_empty(x.shape)


def _straight_through(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    del ctx
    return gradient, None, None


def _operator(name: str, arguments: str, run: Any, fake: Any) -> Callable[..., torch.Tensor]:
    """Register an operator that returns one tensor; ``fake`` computes its shape."""
    operator: Callable[..., torch.Tensor] = torch.library.custom_op(
        f"tersor::{name}",
        run,
        mutates_args=(),
        schema=f"({arguments}) -> Tensor",
        # bounded codecs read back sizes and retain memory between calls, which CUDA graphs do not allow
        tags=(torch.Tag.cudagraph_unsafe,),
    )
    torch.library.register_fake(f"tersor::{name}", fake)
    return operator


_ENCODING: Final = "Tensor x, str spec, Tensor? seed=None"
_DECODING: Final = "Tensor payload, str spec, SymInt[] shape, ScalarType dtype"
_ENCODE: Final = _operator("encode", _ENCODING, _encode, _encode_fake)
_DECODE: Final = _operator("decode", _DECODING, _decode, _decode_fake)
_ROUND_TRIP: Final = _operator("round_trip", _ENCODING, _round_trip, _round_trip_fake)
torch.library.register_autograd("tersor::round_trip", _straight_through)
