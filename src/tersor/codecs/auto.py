"""``auto``: try several codecs on a sample of the tensor and use the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import ClassVar, Final

import torch

from tersor.chunks import MAX_CHUNK_VALUES
from tersor.codecs.arguments import materialised
from tersor.codecs.bounded import check_is_bound
from tersor.codecs.choices import CHOICES, CachedChoice
from tersor.codecs.codec import Codec
from tersor.codecs.costs import costs_on
from tersor.codecs.packed import Packed
from tersor.codecs.raw import Raw
from tersor.codecs.registry import register
from tersor.codecs.rows import Rows
from tersor.codecs.stream import Ans, Delta, Flat, Huffman
from tersor.errors import SpecError
from tersor.kernels.batch.encoded_list import EncodedList, payload_sizes
from tersor.kernels.rows.layout import row_shape
from tersor.kernels.runtime.op import backend_for
from tersor.kernels.runtime.sparing import is_sparing
from tersor.types import Bound, TensorInfo

_SAMPLE_VALUES: Final = 1 << 18
"""Values tried per codec: 1 MiB of float32, a few milliseconds for all candidates."""

_GPU_BANDWIDTH_GBIT_S: Final = 400.0
"""The assumed bandwidth of a GPU's network or host bus, if none is given.
Choosing by size alone would often select ``huffman``, which encodes 5 to 40 times slower there than ``flat``
(results/2026-11-kernels-h200.jsonl)."""


@register
@dataclass(frozen=True, kw_only=True, slots=True)
class Auto(Codec):
    """Choose a codec per tensor. The payload is that of the chosen codec.

    With ``bandwidth_gbit_s``, the bandwidth of the link in Gbit/s, the codec with the shortest total time to encode,
    transfer and decode wins. Times come from the costs of the device (``tersor.codecs.costs``): a fixed time per call
    and a speed, so that ``raw`` wins for small tensors.

    Without it, the smallest result wins on a CPU. On a GPU, where size and time both matter, the shortest time over
    400 Gbit/s wins, among the codecs that make the tensor smaller. If none does, ``raw`` stores it. ``Packed.reason``
    names the criterion and the costs used.

    On a GPU, ``pack`` reuses a choice for up to 64 tensors of one shape, dtype and device, as long as the ratio stays
    within a tenth of the first one's, because trying all candidates takes longer than encoding 256 MiB
    (docs/performance.md). For files and CPU tensors, it chooses anew for every tensor.
    """

    codec_id: ClassVar[str] = "auto"
    is_selector: ClassVar[bool] = True
    guarantee: ClassVar[str] = "every finite value within the bound, NaN and infinities kept"

    bound: Bound
    bandwidth_gbit_s: float | None = None

    def __post_init__(self) -> None:
        """Reject invalid options."""
        check_is_bound(self.bound)
        speed = self.bandwidth_gbit_s
        is_number = isinstance(speed, Real) and not isinstance(speed, bool)
        if speed is not None and not (is_number and 0 < speed < math.inf):
            raise SpecError(f"bandwidth_gbit_s must be a number above 0 and finite, not {speed!r}")

    def candidates(self, x: torch.Tensor) -> list[Codec]:
        """Return the codecs to try on ``x``."""
        return self._tried(tuple(x.shape), x.device)

    def _tried(self, shape: tuple[int, ...], device: torch.device) -> list[Codec]:
        is_on_gpu = backend_for(device) == "gpu"
        found: list[Codec] = [Flat(bound=self.bound)]
        if is_on_gpu:
            found.append(Ans(bound=self.bound))
        else:
            found += [Flat(bound=self.bound, base=True), Huffman(bound=self.bound)]
        for dims in range(1, min(3, len(shape)) + 1):
            found.append(Delta(bound=self.bound, lorenzo=dims))
            if not is_on_gpu:
                found.append(Huffman(bound=self.bound, lorenzo=dims))
        if len(shape) >= 2 and shape[-1] > 1:
            found.append(Rows(bound=self.bound, entropy="ans" if is_on_gpu else "huffman"))
        return [*found, Raw()]

    def tried_on(self, device: torch.device) -> tuple[str, ...]:
        """Return the ids of all codecs that ``auto`` may try on ``device``."""
        return tuple(dict.fromkeys(codec.codec_id for codec in self._tried((2, 2), device)))

    def choose(
        self, x: torch.Tensor, error_bound: float, most_values: int = _SAMPLE_VALUES
    ) -> tuple[Codec, str]:
        """Return the best candidate for a sample of at most ``most_values`` values of ``x``, and the reason as a sentence."""
        sample = _sample(x, most_values)
        fractions = _fractions(self.candidates(x), sample, error_bound)
        eligible = list(fractions)
        if self.bandwidth_gbit_s is None:
            # without a given link, a codec that saves no bytes is not eligible
            eligible = [codec for codec in fractions if fractions[codec] < 1]
        bandwidth = self._link(x.device)
        if bandwidth is None or not eligible:
            codec = min(fractions, key=fractions.__getitem__)
            by, time = "smallest", ""
        else:
            costs = costs_on(x.device)
            times_s = {
                codec: costs.of(codec.codec_id, sample, error_bound).coding_s(x.nbytes)
                + _sending_s(fractions[codec], x.nbytes, bandwidth)
                for codec in eligible
            }
            codec = min(times_s, key=times_s.__getitem__)
            by = f"fastest over {bandwidth:g} Gbit/s"
            time = f", {times_s[codec] * 1e3:.4g} ms by {costs.origin}"
        named = ", ".join(f"{name}={getattr(codec, name)}" for name in codec.option_names())
        ratio = 1 / fractions[codec] if fractions[codec] else 1.0
        reason = (
            f"{codec.codec_id}{f' ({named})' if named else ''} was the {by} of {len(fractions)} codecs "
            f"on a sample of {sample.numel()} values: ratio {ratio:.2f}{time}"
        )
        return codec, reason

    def _link(self, device: torch.device) -> float | None:
        """Return the bandwidth to choose by, in Gbit/s, or None to choose by size."""
        if self.bandwidth_gbit_s is None and backend_for(device) == "gpu":
            return _GPU_BANDWIDTH_GBIT_S
        return self.bandwidth_gbit_s

    def resolve_bound(self, x: torch.Tensor) -> float:
        """See ``BoundedCodec.resolve_bound``."""
        return Flat(bound=self.bound).resolve_bound(x)

    def pack(self, x: torch.Tensor, *, chunk_values: int = MAX_CHUNK_VALUES) -> Packed:
        """Encode with the chosen codec, which ``Packed.codec`` names; ``Packed.error_bound`` is the requested bound."""
        self.check_supported(TensorInfo.of(x).dtype)
        x = materialised(x)
        form = (self, x.shape, x.dtype, x.device)
        is_on_gpu = backend_for(x.device) == "gpu"
        choice = CHOICES.get(form) if is_on_gpu else None
        if choice is None:
            # where memory is short, a chunk is what candidates have room for
            most_values = min(_SAMPLE_VALUES, chunk_values) if is_sparing() else _SAMPLE_VALUES
            codec, reason = self.choose(x, self.resolve_bound(x), most_values)
            packed = codec.pack(x, chunk_values=chunk_values)
            if is_on_gpu:
                CHOICES.put(form, CachedChoice(codec, reason, packed.ratio))
        else:
            codec, reason = choice.codec, choice.repeated_reason()
            packed = codec.pack(x, chunk_values=chunk_values)
            choice.num_calls += 1
            if not choice.is_reusable(packed.ratio):
                CHOICES.drop(form)
        if packed.nbytes > x.nbytes:
            # the sample compressed better than the whole tensor
            del packed
            packed = Raw().pack(x, chunk_values=chunk_values)
            reason = f"raw, because {codec.codec_id} made more bytes of it; {reason}"
        # raw has no error bound of its own; report the requested one
        promised = packed.error_bound
        error_bound = self.resolve_bound(x) if promised is None else promised
        return replace(packed, error_bound=error_bound, reason=reason)

    def unpack(self, packed: Packed, out: torch.Tensor | None = None) -> torch.Tensor:
        """Decode with the chosen codec."""
        return packed.codec.unpack(packed, out)

    def encode(
        self, xs: Sequence[torch.Tensor], bounds: Sequence[Bound] | None = None
    ) -> EncodedList:
        """Raise ``SpecError``: only the chosen codec writes payloads."""
        del xs, bounds
        raise SpecError("codec 'auto' chooses per tensor: call pack, or choose first")

    def decode(self, encoded: EncodedList, outs: Sequence[torch.Tensor]) -> None:
        """Raise ``SpecError``: ``auto`` writes no payloads of its own."""
        del encoded, outs
        raise SpecError("codec 'auto' writes no payload of its own; use the codec it chose")

    def max_nbytes(self, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        """Return the size of exact storage, the fallback of every candidate and therefore their common maximum."""
        return Flat(bound=self.bound).max_nbytes(shape, dtype)


def _fractions(
    codecs: Sequence[Codec], sample: torch.Tensor, error_bound: float
) -> dict[Codec, float]:
    """Return the encoded size of the sample over its original size, by codec.

    Waits for a GPU once for all codecs, or once per codec where working memory is limited.
    """
    bounds = [Bound.absolute(error_bound)]
    lists = (codec.encode([sample], bounds if codec.takes_bound() else None) for codec in codecs)
    if is_sparing():
        sizes = [payload_sizes([encoded])[0] for encoded in lists]
    else:
        sizes = payload_sizes(list(lists))
    pairs = zip(codecs, sizes, strict=True)
    return {codec: nbytes / max(1, sample.nbytes) for codec, (nbytes,) in pairs}


def _sending_s(fraction: float, nbytes: int, bandwidth_gbit_s: float) -> float:
    # an empty tensor, which sends only headers, counts as one byte
    return 8 * fraction * max(1, nbytes) / (bandwidth_gbit_s * 1e9)


def _sample(x: torch.Tensor, most_values: int) -> torch.Tensor:
    """Return a sample of up to ``most_values`` values that preserves the tensor's local structure.

    The sample consists of whole leading slices from the middle of the tensor, or of rows or single values if the
    slices are too large. Rows and neighbouring values therefore stay together.
    """
    if x.numel() <= most_values:
        return x
    views = (x, x.view(row_shape(tuple(x.shape))), x.view(-1))
    whole = next(view for view in views if view[0].numel() <= most_values)
    count = most_values // whole[0].numel()
    start = (len(whole) - count) // 2
    return whole[start : start + count]


def chosen(codec: Codec, x: torch.Tensor, error_bound: float | None) -> tuple[Codec, str]:
    """Return the codec that will write ``x``, and the reason: ``codec`` itself unless it is ``auto``.

    The choice may be ``raw``, for which a file records no error bound.
    """
    if isinstance(codec, Auto) and error_bound is not None:
        return codec.choose(x, error_bound)
    return codec, ""
