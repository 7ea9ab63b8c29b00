"""``auto``: try the codecs on a sample of the tensor and take the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import ClassVar, Final

import torch

from tersor.chunks import MAX_CHUNK_VALUES
from tersor.codecs.bounded import check_is_bound
from tersor.codecs.codec import Codec, materialised
from tersor.codecs.packed import Packed
from tersor.codecs.raw import Raw
from tersor.codecs.registry import register
from tersor.codecs.rows import Rows
from tersor.codecs.stream import Delta, Flat, Huffman
from tersor.errors import SpecError
from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.rows.layout import row_shape
from tersor.types import Bound, TensorInfo

_SAMPLE_VALUES: Final = 1 << 18
"""Values tried per codec: 1 MiB of float32, a few milliseconds for all candidates."""

_SPEEDS_GB_S: Final = {
    "flat": (6.0, 12.0),
    "delta": (3.0, 4.0),
    "huffman": (2.5, 4.0),
    "rows": (3.0, 5.0),
    "raw": (10.0, 10.0),
}
"""Encode and decode speed of one CPU core in GB/s of float32, rounded down from
results/2026-11-kernels-cpu.jsonl; only their order of magnitude matters here."""


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Auto(Codec):
    """Choose a codec per tensor; what is written is the chosen codec's own bytes.

    Without ``bandwidth_gbit_s`` the smallest result wins. With it (gigabit per second of the link
    the bytes will cross) the shortest time to encode, transfer and decode wins. What no codec makes
    smaller is stored by ``raw``. ``Packed.reason`` says why.
    """

    codec_id: ClassVar[str] = "auto"
    is_selector: ClassVar[bool] = True
    guarantee: ClassVar[str] = "every finite value within the bound, NaN and infinities kept"

    bound: Bound
    bandwidth_gbit_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse impossible options."""
        check_is_bound(self.bound)
        speed = self.bandwidth_gbit_s
        is_number = isinstance(speed, Real) and not isinstance(speed, bool)
        if speed is not None and not (is_number and 0 < speed < math.inf):
            raise SpecError(f"bandwidth_gbit_s must be a number above 0 and finite, not {speed!r}")

    def candidates(self, x: torch.Tensor) -> list[Codec]:
        """Return the codecs worth trying on ``x``."""
        found: list[Codec] = [
            Flat(bound=self.bound),
            Flat(bound=self.bound, base=True),
            Huffman(bound=self.bound),
        ]
        for dims in range(1, min(3, x.dim()) + 1):
            found += [
                Delta(bound=self.bound, lorenzo=dims),
                Huffman(bound=self.bound, lorenzo=dims),
            ]
        if x.dim() >= 2 and x.shape[-1] > 1:
            found.append(Rows(bound=self.bound))
        return [*found, Raw()]

    def choose(self, x: torch.Tensor, error_bound: float) -> tuple[Codec, str]:
        """Return the best candidate for ``x`` and a sentence that says why."""
        sample = _sample(x)
        scored = []
        for codec in self.candidates(x):
            promise = error_bound if codec.takes_bound() else None
            encoded_nbytes = codec.pack_chunk(sample, promise).numel()
            cost = self._cost(codec, encoded_nbytes / max(1, sample.nbytes))
            scored.append((cost, codec, sample.nbytes / max(1, encoded_nbytes)))
        cost, codec, ratio = min(scored, key=lambda entry: entry[0])
        by = (
            "smallest"
            if self.bandwidth_gbit_s is None
            else f"fastest over {self.bandwidth_gbit_s:g} Gbit/s ({cost:.3f} ns per byte)"
        )
        named = ", ".join(f"{name}={getattr(codec, name)}" for name in codec.option_names())
        reason = (
            f"{codec.codec_id}{f' ({named})' if named else ''} was the {by} of {len(scored)} codecs "
            f"on a sample of {sample.numel()} values: ratio {ratio:.2f}"
        )
        return codec, reason

    def _cost(self, codec: Codec, fraction: float) -> float:
        """Return bytes per byte, or nanoseconds per byte when a bandwidth is given."""
        if self.bandwidth_gbit_s is None:
            return fraction
        encode_gb_s, decode_gb_s = _SPEEDS_GB_S[codec.codec_id]
        return 8.0 * fraction / self.bandwidth_gbit_s + 1.0 / encode_gb_s + 1.0 / decode_gb_s

    def resolve_bound(self, x: torch.Tensor) -> float:
        """See ``BoundedCodec.resolve_bound``."""
        return Flat(bound=self.bound).resolve_bound(x)

    def pack(self, x: torch.Tensor, *, chunk_values: int = MAX_CHUNK_VALUES) -> Packed:
        """Encode with the chosen codec, which the result names; the bound asked for is promised."""
        self.check_supported(TensorInfo.of(x).dtype)
        x = materialised(x)
        error_bound = self.resolve_bound(x)
        codec, reason = self.choose(x, error_bound)
        packed = codec.pack(x, chunk_values=chunk_values)
        if packed.nbytes > x.nbytes:
            # the sample promised more than the rest kept
            packed = Raw().pack(x, chunk_values=chunk_values)
            reason = f"raw, because {codec.codec_id} made more bytes of it; {reason}"
        return replace(packed, error_bound=error_bound, reason=reason)

    def unpack(self, packed: Packed, out: torch.Tensor | None = None) -> torch.Tensor:
        """Decode with the codec that was chosen."""
        return packed.codec.unpack(packed, out)

    def encode(
        self, xs: Sequence[torch.Tensor], bounds: Sequence[Bound] | None = None
    ) -> EncodedList:
        """Refuse: payloads are written by the chosen codec, never by ``auto`` itself."""
        del xs, bounds
        raise SpecError("codec 'auto' chooses per tensor: call pack, or choose first")

    def decode(self, encoded: EncodedList, outs: Sequence[torch.Tensor]) -> None:
        """Refuse: no payload is ever written by ``auto`` itself."""
        del encoded, outs
        raise SpecError("codec 'auto' writes no payload of its own; use the codec it chose")

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Every candidate falls back to exact storage, so they share one maximum."""
        return Flat(bound=self.bound).max_nbytes(shape, dtype)


def _sample(x: torch.Tensor) -> torch.Tensor:
    """Return up to 2**18 values that keep the tensor's local structure.

    Whole leading slices are taken from the middle where they are small enough, so that rows stay
    rows and neighbours stay neighbours.
    """
    if x.numel() <= _SAMPLE_VALUES:
        return x
    views = (x, x.view(row_shape(tuple(x.shape))), x.view(-1))
    whole = next(view for view in views if view[0].numel() <= _SAMPLE_VALUES)
    count = _SAMPLE_VALUES // whole[0].numel()
    start = (len(whole) - count) // 2
    return whole[start : start + count]


def chosen(codec: Codec, x: torch.Tensor, error_bound: float | None) -> tuple[Codec, str]:
    """Return the codec that will write ``x`` and why: ``codec`` itself unless it is ``auto``.

    ``raw`` may be chosen, for which a file records no error bound.
    """
    if isinstance(codec, Auto) and error_bound is not None:
        return codec.choose(x, error_bound)
    return codec, ""
