"""Our encoders as they are measured on look-ups: each slice with a bound of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch

from tersor.bench.core.candidate import Candidate, ListCandidate
from tersor.bench.peers.mx4 import Mx4
from tersor.codecs import registry
from tersor.codecs.codec import Codec
from tersor.container import (
    Batch,
    begin_decode_batch,
    decode_batch,
    encode_batch,
)
from tersor.errors import UnknownCodecError
from tersor.types import Bound, TensorInfo

BOUNDED: Final = ("flat", "delta", "huffman", "ans", "lz4", "zstd", "rows", "rows-ans")
FIXED: Final = ("half", "bf16", "fp8", "group8", "group4", "mx4")
"""Encoders that promise a size and no error; ``group8`` is what others call int8 row-wise."""
LOOKUP_CODECS: Final = (*BOUNDED, *FIXED)
DEVICE_LOOKUP_CODECS: Final = (
    "flat", "flat-device", "delta", "huffman", "ans", "ans-device", "rows", "rows-ans",
    "rows-device", *FIXED,
)  # fmt: skip
_VARIANTS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "rows-ans": ("rows", {"entropy": "ans"}),
    "flat-device": ("flat", {}),
    "ans-device": ("ans", {}),
    "rows-device": ("rows", {"entropy": "ans"}),
}
_ON_DEVICE: Final = "-device"


def check_encoders(names: Iterable[str]) -> None:
    """Raise ``UnknownCodecError`` for a name that is neither ours nor a registered codec's.

    Nor may it be ``auto``, which chooses a codec and writes no bytes of its own.
    """
    every = dict.fromkeys((*LOOKUP_CODECS, *DEVICE_LOOKUP_CODECS))
    for name in names:
        if name in every:
            continue
        if name not in registry.codec_ids() or registry.get(name).is_selector:
            raise UnknownCodecError(f"encoders of look-ups are {', '.join(every)}, not {name!r}")


class SlicedCodec(Candidate):
    """A codec of ours with a bound per slice, or with none; all slices in one call."""

    peer = False

    def __init__(self, name: str, codecs: Sequence[Codec]) -> None:
        """Measure ``codecs``, one for each slice: the same but for the bound, and the size of a group."""
        self.name, self.codecs = name, codecs
        self.version, self.bounded = str(codecs[0].version), codecs[0].takes_bound()

    def options(self) -> dict[str, Any]:
        """Return the codecs' own spec, without the bound; a list where they differ."""
        configs = [codec.to_config() for codec in dict.fromkeys(self.codecs)]
        values = {
            name: [config[name] for config in configs]
            for name in configs[0]
            if name not in ("id", "version", "bound")
        }
        return {k: v[0] if all(one == v[0] for one in v) else v for k, v in values.items()}

    def encode(self, x: torch.Tensor, error_bound: float) -> torch.Tensor:
        """Encode one slice within an absolute bound, or at the fixed rate."""
        return self.codecs[0].pack_chunk(x, error_bound if self.bounded else None)

    def decode(self, encoded: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Decode one slice into ``out``."""
        return self.decode_all([encoded], [out])[0]

    def nbytes(self, encoded: torch.Tensor) -> int:
        """Return the size of the payload."""
        return encoded.numel()

    def encode_all(
        self, xs: Sequence[torch.Tensor], error_bounds: Sequence[float]
    ) -> list[torch.Tensor]:
        """Encode every slice within its own relative bound, so that ranges are looked for too."""
        del error_bounds
        return encode_batch(xs, self.codecs).payloads()

    def decode_all(
        self, encoded: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Decode every slice."""
        infos = [TensorInfo.of(out) for out in outs]
        return decode_batch(Batch.of(encoded), infos, self.codecs, outs)


class SlicedBatch(ListCandidate):
    """The same as ``encode_batch`` leaves it on a GPU: one buffer, sizes there, no second pass."""

    peer = False
    note = "one buffer, sizes left on the device"

    def __init__(self, name: str, codecs: Sequence[Codec]) -> None:
        """See ``SlicedCodec``."""
        self._plain = SlicedCodec(name, codecs)
        self.name, self.codecs = name, codecs
        self.version, self.bounded = self._plain.version, self._plain.bounded

    def options(self) -> dict[str, Any]:
        """See ``SlicedCodec.options``."""
        return self._plain.options()

    def encode_all(self, xs: Sequence[torch.Tensor], error_bounds: Sequence[float]) -> Batch:
        """Return the buffer and the sizes of the payloads in it."""
        del error_bounds
        return encode_batch(xs, self.codecs)

    def decode_all(self, encoded: Batch, outs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Decode all payloads; the status is left on the device, as the sizes are."""
        begin_decode_batch(encoded, [TensorInfo.of(out) for out in outs], self.codecs, outs)
        return outs

    def total_nbytes(self, encoded: Batch) -> int:
        """Return the bytes of all payloads, each padded as it lies in the buffer."""
        return int(encoded.offsets[-1])


def make_lookup_candidate(
    name: str, relative_bounds: Sequence[float], widths: Sequence[int]
) -> Candidate:
    """Build one of our encoders, or MX4, for slices with these bounds and rows of these widths.

    Raises:
        UnknownCodecError: nothing has that name.
        BackendUnavailableError: its kernels cannot be imported.
    """
    if name == Mx4.name:
        return Mx4()
    pairs = list(zip(relative_bounds, widths, strict=True))
    made = {pair: _codec(name, *pair) for pair in set(pairs)}
    codecs = [made[pair] for pair in pairs]
    return (SlicedBatch if name.endswith(_ON_DEVICE) else SlicedCodec)(name, codecs)


def _codec(name: str, relative_bound: float, width: int) -> Codec:
    codec_id, options = _VARIANTS.get(name, (name, {}))
    if codec_id in ("group8", "group4") and width % 2 == 0:
        options = {"group": width}
    if registry.get(codec_id).takes_bound():
        options = {**options, "bound": Bound.relative(relative_bound)}
    return registry.create(codec_id, **options)
