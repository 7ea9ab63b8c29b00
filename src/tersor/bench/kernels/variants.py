"""Our codecs as candidates: by their id, or as named variants with options and a calling mode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from tersor.api import compress, decompress
from tersor.bench.core.candidate import Candidate, CodecCandidate, DeviceBatch
from tersor.bench.core.graphs import Replays
from tersor.codecs import Packed, registry
from tersor.container import Batch, decode_batch
from tersor.types import Bound

_ABSOLUTE: Final = "-absolute"


class Compressed(CodecCandidate):
    """One of our codecs, called tensor by tensor through ``tersor.compress`` and ``decompress``."""

    note = "tersor.compress and tersor.decompress"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """See ``CodecCandidate``."""
        super().__init__(*arguments, **options)
        codec: Any = self.codecs[0]
        usual: Any = registry.create(codec.codec_id, bound=codec.bound)
        self._asked = {
            name: getattr(codec, name)
            for name in codec.option_names()
            if getattr(codec, name) != getattr(usual, name)
        }

    def encode_all(
        self, xs: Sequence[torch.Tensor], error_bounds: Sequence[float]
    ) -> Sequence[Packed]:
        """Compress every slice."""
        del error_bounds
        codec: Any = self.codecs[0]
        return [compress(x, codec.bound, codec=codec.codec_id, **self._asked) for x in xs]

    def decode_all(
        self, encoded: Sequence[Packed], outs: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        """Decompress every slice."""
        return [decompress(packed, out) for packed, out in zip(encoded, outs, strict=True)]

    def total_nbytes(self, encoded: Sequence[Packed]) -> int:
        """Return the bytes of all payloads."""
        return sum(packed.nbytes for packed in encoded)


class CheckedBatch(DeviceBatch):
    """A list coded by ``tersor.encode_batch`` and ``decode_batch``; decoding waits for its status."""

    note = "tersor.encode_batch and tersor.decode_batch"

    def decode_all(self, encoded: Batch, outs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Decode all payloads and wait for their status."""
        return decode_batch(encoded, self._infos_of(outs), self._decoders(len(outs)), outs)


class GraphBatch(DeviceBatch):
    """A list on the device, replayed from CUDA graphs as a captured training step does."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """See ``CodecCandidate``."""
        super().__init__(*arguments, **options)
        self.note = f"{self.note}; replayed as a CUDA graph"
        self._replays = Replays()

    def encode_all(self, xs: Sequence[torch.Tensor], error_bounds: Sequence[float]) -> Batch:
        """See ``DeviceBatch.encode_all``."""
        eager = super().encode_all
        found: Batch = self._replays.call("encode", xs, lambda: eager(xs, error_bounds))
        return found

    def decode_all(self, encoded: Batch, outs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """See ``DeviceBatch.decode_all``."""
        eager = super().decode_all
        tensors = [encoded.buffer, *outs]
        found: Sequence[torch.Tensor] = self._replays.call(
            "decode", tensors, lambda: eager(encoded, outs)
        )
        return found


_BATCHES: Final = {"batch": CheckedBatch, "device": DeviceBatch, "graph": GraphBatch}
_IN_BATCHES: Final[Mapping[str, Mapping[str, Any]]] = {
    "flat": {}, "ans": {}, "rows": {"entropy": "ans"}, "half": {}, "group8": {}, "group4": {},
}  # fmt: skip
VARIANTS: Final[Mapping[str, tuple[type[CodecCandidate], str, Mapping[str, Any]]]] = {
    f"flat{_ABSOLUTE}": (CodecCandidate, "flat", {}),
    "rows-ans": (CodecCandidate, "rows", {"entropy": "ans"}),
    "group4-hadamard": (CodecCandidate, "group4", {"hadamard": True}),
    **{f"{codec}-compress": (Compressed, codec, {}) for codec in ("auto", "flat", "ans", "delta")},
    "delta3-compress": (Compressed, "delta", {"lorenzo": 3}),
    **{
        f"{codec}-{mode}{given}": (kind, codec, options)
        for codec, options in _IN_BATCHES.items()
        for mode, kind in _BATCHES.items()
        for given in (("", _ABSOLUTE) if codec in ("flat", "ans") else ("",))
    },
}
"""The candidate class of each variant, its codec, and the codec's options other than the bound."""


def takes_bound(name: str) -> bool:
    """Return True if a codec or variant takes a bound.

    Raises:
        UnknownCodecError: no codec or variant has that name.
    """
    return registry.get(VARIANTS[name][1] if name in VARIANTS else name).takes_bound()


def make_candidate(name: str, relative_bound: float | None) -> Candidate:
    """Build the candidate of a codec or variant; ``relative_bound`` is None if it takes no bound.

    Raises:
        BackendUnavailableError: the codec's kernels cannot be imported.
    """
    kind, codec_id, options = VARIANTS.get(name, (CodecCandidate, name, {}))
    if relative_bound is not None:
        options = {**options, "bound": Bound.relative(relative_bound)}
    codec = registry.create(codec_id, **options)
    return kind([codec], name, is_absolute=name.endswith(_ABSOLUTE))
