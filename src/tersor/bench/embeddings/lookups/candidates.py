"""Our encoders for look-ups, in which each slice has its own bound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tersor.bench.core.candidate import Candidate, CodecCandidate, DeviceBatch
from tersor.bench.peers.mx4 import Mx4
from tersor.codecs import registry
from tersor.codecs.codec import Codec
from tersor.errors import UnknownCodecError
from tersor.types import Bound

BOUNDED: Final = ("flat", "delta", "huffman", "ans", "lz4", "zstd", "rows", "rows-ans")
FIXED: Final = ("half", "bf16", "fp8", "group8", "group4", "mx4")
"""Encoders with a fixed rate and no error bound; ``group8`` is row-wise int8 quantization."""
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
    """Check the names of encoders.

    Raises:
        UnknownCodecError: a name is neither one of our encoders nor a registered codec, or it is a
            selector such as ``auto``, which only chooses among codecs.
    """
    every = dict.fromkeys((*LOOKUP_CODECS, *DEVICE_LOOKUP_CODECS))
    for name in names:
        if name in every:
            continue
        if name not in registry.codec_ids() or registry.get(name).is_selector:
            raise UnknownCodecError(f"encoders of look-ups are {', '.join(every)}, not {name!r}")


def make_lookup_candidate(
    name: str, relative_bounds: Sequence[float], widths: Sequence[int]
) -> Candidate:
    """Build one of our encoders, or MX4, for slices with the given bounds and row widths.

    Raises:
        UnknownCodecError: no codec has that name.
        BackendUnavailableError: the codec's kernels cannot be imported.
    """
    if name == Mx4.name:
        return Mx4()
    pairs = list(zip(relative_bounds, widths, strict=True))
    made = {pair: _codec(name, *pair) for pair in set(pairs)}
    codecs = [made[pair] for pair in pairs]
    return (DeviceBatch if name.endswith(_ON_DEVICE) else CodecCandidate)(codecs, name)


def _codec(name: str, relative_bound: float, width: int) -> Codec:
    codec_id, options = _VARIANTS.get(name, (name, {}))
    if codec_id in ("group8", "group4") and width % 2 == 0:
        options = {"group": width}
    if registry.get(codec_id).takes_bound():
        options = {**options, "bound": Bound.relative(relative_bound)}
    return registry.create(codec_id, **options)
