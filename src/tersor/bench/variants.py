"""Our codecs as they are measured on a device: by their id, or set in a way that has a name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import torch

from tersor.bench.candidate import Candidate, CodecCandidate, ListCandidate
from tersor.codecs import registry
from tersor.codecs.codec import Codec
from tersor.container import decode_payloads, encode_payloads
from tersor.errors import BackendUnavailableError
from tersor.types import Bound, TensorInfo

_GIVEN: Final = "the absolute bound of each slice was given"


class AbsoluteCandidate(CodecCandidate):
    """A codec of ours, given the absolute bound of every slice, so that no range is looked for."""

    note = _GIVEN

    def __init__(self, codec: Any) -> None:
        """Measure ``codec``, which takes a bound; its own is replaced."""
        super().__init__(codec)
        self.name = f"{codec.codec_id}-absolute"
        self._codecs: dict[tuple[float, ...], list[Codec]] = {}

    def options(self) -> dict[str, Any]:
        """Return the codec's spec and which kind of bound it was given."""
        return {**super().options(), "given": "absolute"}

    def encode_all(
        self, xs: Sequence[torch.Tensor], error_bounds: Sequence[float]
    ) -> list[torch.Tensor]:
        """Encode every slice within its own bound."""
        bounds = tuple(error_bounds)
        if bounds not in self._codecs:
            codec: Any = self.codec
            self._codecs[bounds] = [
                dataclasses.replace(codec, bound=Bound.absolute(bound)) for bound in bounds
            ]
        return encode_payloads(xs, self._codecs[bounds])

    def decode_all(
        self, encoded: Sequence[torch.Tensor], outs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Decode every slice; the bound plays no part in it."""
        infos = [TensorInfo.of(out) for out in outs]
        return decode_payloads(encoded, infos, [self.codec] * len(outs), outs)


class FlatDevice(ListCandidate):
    """The kernels behind ``flat`` alone: one buffer, sizes left on the device, no waiting."""

    peer = False
    note = "one buffer, sizes left on the device"

    def __init__(self, relative_bound: float, *, is_absolute: bool = False) -> None:
        """Encode with the relative bound, or with the absolute bound it comes to."""
        codec: Any = registry.create("flat", bound=Bound.relative(relative_bound))
        self.version, self._block = str(codec.version), int(codec.block)
        self._relative = None if is_absolute else Bound.relative(relative_bound)
        self.name = "flat-device-absolute" if is_absolute else "flat-device"
        if is_absolute:
            self.note = f"{FlatDevice.note}; {_GIVEN}"
        try:
            self._kernels: Any = import_module("tersor.kernels.flat.gpu")
        except ImportError as error:
            raise BackendUnavailableError(f"its kernels need triton: {error}") from error

    def options(self) -> dict[str, Any]:
        """Return the block, and which kind of bound was given."""
        given = {} if self._relative else {"given": "absolute"}
        return {"block": self._block, **given}

    def encode_all(
        self, xs: Sequence[torch.Tensor], error_bounds: Sequence[float]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the buffer and the sizes of the payloads in it."""
        bounds = [self._relative or Bound.absolute(bound) for bound in error_bounds]
        buffer, sizes = self._kernels.encode_flat(xs, bounds, self._block)
        return buffer, sizes

    def decode_all(
        self, encoded: tuple[torch.Tensor, torch.Tensor], outs: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        """Decode all payloads; the status is left on the device, as the sizes are."""
        buffer, sizes = encoded
        padded = (sizes + 7) & ~7
        self._kernels.decode_flat(buffer, padded.cumsum(0) - padded, sizes, outs, self._block)
        return outs

    def total_nbytes(self, encoded: tuple[torch.Tensor, torch.Tensor]) -> int:
        """Return the bytes of all payloads, each padded as it lies in the buffer."""
        return int(((encoded[1] + 7) & ~7).sum())


def _absolute(relative_bound: float | None) -> Candidate:
    return AbsoluteCandidate(CodecCandidate.create("flat", relative_bound).codec)


def _hadamard(relative_bound: float | None) -> Candidate:
    del relative_bound
    candidate = CodecCandidate(registry.create("group4", hadamard=True))
    candidate.name = "group4-hadamard"
    return candidate


VARIANTS: Final[Mapping[str, tuple[bool, Callable[[Any], Candidate]]]] = {
    "flat-absolute": (True, _absolute),
    "flat-device": (True, FlatDevice),
    "flat-device-absolute": (True, lambda bound: FlatDevice(bound, is_absolute=True)),
    "group4-hadamard": (False, _hadamard),
}
"""Whether each takes a bound, and how it is made at a relative bound."""


def takes_bound(name: str) -> bool:
    """Say whether a codec or variant takes a bound.

    Raises:
        UnknownCodecError: nothing has that name.
    """
    return VARIANTS[name][0] if name in VARIANTS else registry.get(name).takes_bound()


def make_candidate(name: str, relative_bound: float | None) -> Candidate:
    """Build a codec or variant; ``relative_bound`` is None where it takes no bound.

    Raises:
        BackendUnavailableError: its kernels cannot be imported.
    """
    if name in VARIANTS:
        return VARIANTS[name][1](relative_bound)
    return CodecCandidate.create(name, relative_bound)
