"""The interface that every codec implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from types import FunctionType
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self

import torch

from tersor.chunks import MAX_CHUNK_VALUES, ChunkPlan
from tersor.codecs.arguments import (
    check_chunk_values,
    check_num_values,
    check_payload_size,
    checked_out,
    checked_payload,
    copy_if_strided,
    materialised,
)
from tersor.codecs.lru_cache import LruCache
from tersor.codecs.packed import Packed
from tersor.errors import CorruptDataError, SpecError
from tersor.kernels.batch.encoded_list import (
    EncodedList,
    Settling,
    Undecoded,
    finish_decoding,
    settled,
)
from tersor.kernels.runtime.op import backend_for
from tersor.kernels.runtime.sparing import is_sparing
from tersor.kernels.runtime.threads import fork_safe
from tersor.raw_bytes import empty, padded
from tersor.types import FLOAT_DTYPES, Bound, TensorInfo

_COMPUTING: Final = (
    "resolve_bound", "encode", "decode", "pack", "unpack", "encode_difference", "decode_add",
)  # fmt: skip
"""The methods of codecs that compute with tensors, and must be fork-safe."""
_SIZE_MARGIN: Final = 1.03
"""Memory for a payload of expected size, relative to that size. The slack stays below a sixteenth, above which
``EncodedList.payloads`` copies."""


class LastPacked(NamedTuple):
    """The size of the last payload packed for a form, and a function that repeats its call for other tensors."""

    nbytes: int
    again: Callable[[Sequence[torch.Tensor]], EncodedList | None] | None


LAST_PACKED: Final[LruCache[LastPacked]] = LruCache(max_forms=1024)
"""The last calls by codec, shape, dtype, device and backend, for tensors that a GPU encodes without waiting."""
_LAST_UNPACKED: Final[LruCache[Undecoded]] = LruCache(max_forms=1024)
"""The last decoding calls by the same keys; ``Undecoded.again`` repeats them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Codec(ABC):
    """A named, versioned conversion of tensors to bytes and back.

    Instances are frozen specs: ``to_config`` and ``from_config`` round-trip through JSON, and equal
    configs make equal codecs. Codecs of the same id and version decode each other's bytes.

    ``encode`` and ``decode`` take lists of tensors and serve ``compress``, batches, files and every
    site. ``pack`` and ``unpack`` take one tensor of any size and layout.
    """

    codec_id: ClassVar[str]
    version: ClassVar[int] = 1
    size_kind: ClassVar[Literal["fixed", "bounded"]] = "bounded"
    takes_seed: ClassVar[bool] = False
    """True if ``encode`` takes a ``seed`` and rounds stochastically with it."""
    is_selector: ClassVar[bool] = False
    """True for a codec that only chooses another one, and is never named in a file."""
    guarantee: ClassVar[str]
    """What the codec promises about the decoded values, in one line."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make the methods that a codec defines work in a forked child, whoever calls them."""
        # a dataclass with slots creates its class twice: super() alone would refer to the first
        # Codec, and the loop sees methods that it has already wrapped
        super(Codec, cls).__init_subclass__(**kwargs)
        for name in _COMPUTING:
            if name in vars(cls):
                setattr(cls, name, _fork_safe_member(vars(cls)[name]))

    @abstractmethod
    def encode(
        self, xs: Sequence[torch.Tensor], bounds: Sequence[Bound] | None = None
    ) -> EncodedList:
        """Encode contiguous tensors of one dtype and device, each as one payload.

        Args:
            xs: at least one tensor, each of up to 2**30 values.
            bounds: one per tensor, instead of the codec's own bound.

        Returns:
            The payloads, which a GPU may only have measured so far. ``EncodedList.written`` writes them
            without waiting, ``settled`` to memory of their exact size. The tensors must not change before.
        """

    @abstractmethod
    def decode(self, encoded: EncodedList, outs: Sequence[torch.Tensor]) -> Undecoded | None:
        """Decode payloads into contiguous tensors of one dtype and device.

        Returns:
            What the device has not finished yet; None if all tensors are decoded.

        Raises:
            CorruptDataError: a payload is not one that this codec writes.
        """

    @abstractmethod
    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Return an upper bound of the payload size of one chunk; exact if ``size_kind`` is fixed."""

    def workspace_nbytes(self, num_values: int, dtype: torch.dtype) -> int:
        """Return an upper bound of the device memory that coding ``num_values`` values takes beyond them and their payload.

        The bound excludes a few MiB per call and 256 KiB of tables per tensor. It is proportional to ``num_values``, with
        a positive factor, and holds for encoding and decoding inside ``sparing_memory``.

        This default covers composed operations, and ``rows`` with rows of one value.
        """
        del dtype
        return 96 * num_values

    def supports(self, dtype: torch.dtype) -> bool:
        """True if tensors of ``dtype`` can be encoded."""
        return dtype in FLOAT_DTYPES

    def check_supported(self, dtype: torch.dtype) -> None:
        """Raise ``SpecError`` if tensors of ``dtype`` cannot be encoded."""
        if not self.supports(dtype):
            raise SpecError(
                f"codec {self.codec_id!r} cannot encode {dtype}; convert to float32, "
                "or use codec 'raw' to store it exactly"
            )

    def resolve_bound(self, x: torch.Tensor) -> float | None:
        """Return the absolute error promised for ``x``, or None if the codec promises a size."""
        del x
        return None

    @fork_safe
    def pack(self, x: torch.Tensor, *, chunk_values: int = MAX_CHUNK_VALUES) -> Packed:
        """Encode a tensor of any size and layout, without changing it.

        Raises:
            SpecError: the dtype or layout cannot be encoded by this codec.
        """
        info = TensorInfo.of(x)
        self.check_supported(info.dtype)
        check_chunk_values(chunk_values)
        x = materialised(x)
        if info.numel <= chunk_values:
            form = self._form(x.shape, x.dtype, x.device)
            last = None if is_sparing() else LAST_PACKED.get(form)
            encoded = None if last is None or last.again is None else last.again([x])
            encoded = self.encode([x]) if encoded is None else encoded
            encoded = _settled(x, encoded, form, last)
            error_bound = self._promised(x, encoded)
            return Packed(info, self, tuple(encoded.payloads()), chunk_values, error_bound)
        plan = ChunkPlan(info.shape, chunk_values)
        error_bound = self.resolve_bound(x)
        chunks = (x.view(-1)[chunk.start : chunk.stop].view(chunk.shape) for chunk in plan)
        payloads = tuple(self.pack_chunk(chunk, error_bound) for chunk in chunks)
        return Packed(info, self, payloads, chunk_values, error_bound)

    def _form(self, shape: Hashable, dtype: torch.dtype, device: torch.device) -> Hashable:
        return self, shape, dtype, device, backend_for(device)

    def _promised(self, x: torch.Tensor, encoded: EncodedList) -> float | None:
        """Return what ``resolve_bound`` does, from the range that encoding found, if any."""
        limits = encoded.ranges[0] if encoded.ranges else None
        if limits is None or not self.takes_bound():
            return self.resolve_bound(x)
        return self.own_bound().resolve(*limits)

    def pack_chunk(self, x: torch.Tensor, error_bound: float | None = None) -> torch.Tensor:
        """Return the payload of one contiguous chunk.

        ``error_bound`` is the error promised for the chunk's whole array, instead of the codec's own bound.
        """
        check_num_values(x.numel())
        bounds = None if error_bound is None else [Bound.absolute(error_bound)]
        (encoded,) = settled([self.encode([x], bounds)])
        return encoded.payloads()[0]

    @fork_safe
    def unpack(self, packed: Packed, out: torch.Tensor | None = None) -> torch.Tensor:
        """Decode into ``out`` (same shape, dtype and device) or into a new tensor.

        Raises:
            SpecError: the codec does not support the dtype, or ``out`` does not match.
            CorruptDataError: the payload is not one that this codec writes.
        """
        if not isinstance(packed, Packed):
            raise SpecError(f"expected what pack returned, not {type(packed).__name__}")
        info = packed.info
        self.check_supported(info.dtype)
        found = self._unpack_again(packed) if out is None else None
        if found is not None:
            return found
        plan = ChunkPlan(info.shape, packed.chunk_values)
        if len(plan) != len(packed.payloads):
            raise CorruptDataError(f"{len(plan)} chunks expected, {len(packed.payloads)} present")
        for chunk, payload in zip(plan, packed.payloads, strict=True):
            check_payload_size(payload, chunk.stop - chunk.start)
        target = checked_out(out, info, packed.device)
        flat = target.view(-1)
        parts = [flat[chunk.start : chunk.stop].view(chunk.shape) for chunk in plan]
        payloads = [checked_payload(payload) for payload in packed.payloads]
        undecoded = self.decode(EncodedList.apart(payloads), parts)
        if undecoded is not None and len(parts) == 1:
            form = self._form(info.shape, info.dtype, target.device)
            _LAST_UNPACKED.put(form, undecoded.without_status())
        finish_decoding(undecoded, payloads, parts)
        return target if out is None else copy_if_strided(target, out)

    def _unpack_again(self, packed: Packed) -> torch.Tensor | None:
        """Decode a single payload on a GPU by repeating the last call of its form; None, with nothing done, if impossible."""
        if len(packed.payloads) != 1:
            return None
        info, payload, device = packed.info, packed.payloads[0], packed.device
        last = _LAST_UNPACKED.get(self._form(info.shape, info.dtype, device))
        if last is None or last.again is None:
            return None
        if (
            info.numel > packed.chunk_values
            or not payload.is_contiguous()
            or payload.data_ptr() % 8
        ):
            return None
        check_payload_size(payload, info.numel)
        target = empty(info.shape, info.dtype, device)
        places = (payload.data_ptr(), payload.numel())
        found = last.again.wait((target.data_ptr(),), places, lambda: None)
        if found is None:
            return None
        if found[0][0]:
            last.decode(target, payload)
        return target

    def batch_key(self) -> Hashable:
        """Return a key that is equal for codecs that can share a call of ``encode``."""
        return self

    @classmethod
    @cache
    def takes_bound(cls) -> bool:
        """True if the codec promises an error bound, and therefore has an option ``bound``."""
        return any(f.name == "bound" for f in fields(cls))

    def own_bound(self) -> Bound:
        """Return the option ``bound`` of a codec that ``takes_bound``."""
        bound: Bound = self.bound  # type: ignore[attr-defined]
        return bound

    @classmethod
    def options_on(cls, device: torch.device) -> dict[str, Any]:
        """Return the default options for tensors on ``device``."""
        del device
        return {}

    @classmethod
    @cache
    def option_names(cls) -> tuple[str, ...]:
        """Return the names of the options, without ``bound``."""
        return tuple(f.name for f in fields(cls) if f.name != "bound")

    @classmethod
    def check_options(cls, names: Iterable[str]) -> None:
        """Raise ``SpecError`` for an option that the codec does not have."""
        unknown = set(names) - {f.name for f in fields(cls)}
        if unknown:
            known = ", ".join(cls.option_names()) or "none"
            raise SpecError(
                f"codec {cls.codec_id!r} has no option {min(unknown)!r}; it has {known}"
            )

    def to_config(self) -> dict[str, Any]:
        """Return the spec as JSON-ready values, with ``id`` and ``version``."""
        config: dict[str, Any] = {"id": self.codec_id, "version": self.version}
        for f in fields(self):
            value = getattr(self, f.name)
            config[f.name] = value.to_config() if isinstance(value, Bound) else value
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Rebuild the codec from ``to_config``'s output; an unknown key raises ``SpecError``."""
        spec = {key: value for key, value in config.items() if key not in ("id", "version")}
        cls.check_options(spec)
        if "bound" in spec:
            spec["bound"] = Bound.from_config(spec["bound"])
        return cls(**spec)


def _settled(
    x: torch.Tensor, encoded: EncodedList, form: Hashable, last: LastPacked | None
) -> EncodedList:
    """Wait for the encoding of one contiguous tensor, and record it as the last one of its form.

    If a tensor of this form was encoded before, a payload that is measured but not written is written at once, to
    slightly more memory than the previous payload took, and again if that is too small. The host reads the size while
    a GPU writes, and returns without waiting for that. Otherwise the GPU would be idle while the host reads the size
    and launches, and again until the next call: 140 us of 416 for 256 MiB.
    """
    if encoded.is_settled:
        return encoded
    again, settling = encoded.again, Settling([encoded], x.dtype)
    if last is not None:
        encoded = encoded.written(padded(int(last.nbytes * _SIZE_MARGIN)))
    (known,) = settling.finish([encoded])
    if not is_sparing():
        # where memory is short, calls are made in another way
        LAST_PACKED.put(form, LastPacked(int(known.sizes[0]), again))
    return known


def _fork_safe_member(member: Any) -> Any:
    """Return a fork-safe version of a function, static method or class method; anything else unchanged."""
    if isinstance(member, staticmethod):
        return staticmethod(fork_safe(member.__func__))
    if isinstance(member, classmethod):
        return classmethod(fork_safe(member.__func__))
    return fork_safe(member) if isinstance(member, FunctionType) else member


def check_written(codec: Codec, nbytes: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise ``SpecError`` if a payload's size contradicts ``max_nbytes``, on which others rely."""
    most = codec.max_nbytes(shape, dtype)
    if nbytes > most or (codec.size_kind == "fixed" and nbytes != most):
        raise SpecError(
            f"codec {codec.codec_id!r} wrote {nbytes} bytes where its max_nbytes says {most}; correct "
            "max_nbytes or size_kind"
        )
