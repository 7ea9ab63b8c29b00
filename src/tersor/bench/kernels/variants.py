"""Our codecs as they are measured on a device: by their id, or set in a way that has a name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch

from tersor.bench.core.candidate import Candidate, CodecCandidate, ListCandidate
from tersor.bench.core.graphs import Replays
from tersor.codecs import registry
from tersor.codecs.codec import Codec
from tersor.container import (
    Batch,
    begin_decode_batch,
    encode_batch,
)
from tersor.types import Bound, TensorInfo

_FIXED: Final = ("half", "group8", "group4")
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
        return encode_batch(xs, self._codecs[bounds]).payloads()


class DeviceBatch(ListCandidate):
    """A codec of ours as a site uses it on a GPU: one buffer, sizes left there, no waiting."""

    peer = False
    note = "one buffer, sizes left on the device"

    def __init__(
        self,
        codec_id: str,
        relative_bound: float | None,
        *,
        is_absolute: bool = False,
        **options: Any,
    ) -> None:
        """Encode with the relative bound, or with the absolute bound it comes to, if there is one."""
        self.bounded = relative_bound is not None
        if relative_bound is not None:
            options["bound"] = Bound.relative(relative_bound)
        self._codec: Any = registry.create(codec_id, **options)
        self.version, self._is_absolute = str(self._codec.version), is_absolute
        self.name = f"{codec_id}-device-absolute" if is_absolute else f"{codec_id}-device"
        if is_absolute:
            self.note = f"{DeviceBatch.note}; {_GIVEN}"
        self._codecs: dict[tuple[float, ...], list[Codec]] = {}

    def options(self) -> dict[str, Any]:
        """Return the codec's spec, and which kind of bound was given."""
        given = {"given": "absolute"} if self._is_absolute else {}
        return {**CodecCandidate(self._codec).options(), **given}

    def encode_all(self, xs: Sequence[torch.Tensor], error_bounds: Sequence[float]) -> Batch:
        """Return the buffer and the sizes of the payloads in it."""
        if not self._is_absolute:
            return encode_batch(xs, [self._codec] * len(xs))
        key = tuple(error_bounds)
        if key not in self._codecs:
            self._codecs[key] = [
                dataclasses.replace(self._codec, bound=Bound.absolute(bound)) for bound in key
            ]
        return encode_batch(xs, self._codecs[key])

    def decode_all(self, encoded: Batch, outs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """Decode all payloads; the status is left on the device, as the sizes are."""
        infos = [TensorInfo.of(out) for out in outs]
        begin_decode_batch(encoded, infos, [self._codec] * len(outs), outs)
        return outs

    def total_nbytes(self, encoded: Batch) -> int:
        """Return the bytes of all payloads, each padded as it lies in the buffer."""
        return int(encoded.offsets[-1])


class GraphBatch(DeviceBatch):
    """The same, captured once in CUDA graphs and replayed: what a captured training step does."""

    def __init__(
        self,
        codec_id: str,
        relative_bound: float | None,
        *,
        is_absolute: bool = False,
        **options: Any,
    ) -> None:
        """See ``DeviceBatch``."""
        super().__init__(codec_id, relative_bound, is_absolute=is_absolute, **options)
        self.name = self.name.replace("-device", "-graph")
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


def _absolute(relative_bound: float | None) -> Candidate:
    return AbsoluteCandidate(CodecCandidate.create("flat", relative_bound).codec)


def _hadamard(relative_bound: float | None) -> Candidate:
    del relative_bound
    candidate = CodecCandidate(registry.create("group4", hadamard=True))
    candidate.name = "group4-hadamard"
    return candidate


def _rows_ans(relative_bound: float) -> Candidate:
    codec = registry.create("rows", bound=Bound.relative(relative_bound), entropy="ans")
    candidate = CodecCandidate(codec)
    candidate.name = "rows-ans"
    return candidate


VARIANTS: Final[Mapping[str, tuple[bool, Callable[[Any], Candidate]]]] = {
    "flat-absolute": (True, _absolute),
    "flat-device": (True, lambda bound: DeviceBatch("flat", bound)),
    "flat-device-absolute": (True, lambda bound: DeviceBatch("flat", bound, is_absolute=True)),
    "ans-device": (True, lambda bound: DeviceBatch("ans", bound)),
    "ans-device-absolute": (True, lambda bound: DeviceBatch("ans", bound, is_absolute=True)),
    "rows-ans": (True, _rows_ans),
    "rows-device": (True, lambda bound: DeviceBatch("rows", bound, entropy="ans")),
    "flat-graph": (True, lambda bound: GraphBatch("flat", bound)),
    "flat-graph-absolute": (True, lambda bound: GraphBatch("flat", bound, is_absolute=True)),
    "ans-graph": (True, lambda bound: GraphBatch("ans", bound)),
    "ans-graph-absolute": (True, lambda bound: GraphBatch("ans", bound, is_absolute=True)),
    "rows-graph": (True, lambda bound: GraphBatch("rows", bound, entropy="ans")),
    "group4-hadamard": (False, _hadamard),
    **{f"{name}-device": (False, partial(DeviceBatch, name)) for name in _FIXED},
    **{f"{name}-graph": (False, partial(GraphBatch, name)) for name in _FIXED},
}
"""Whether each takes a bound, and how it is made at a relative bound."""


def takes_bound(name: str) -> bool:
    """True if a codec or variant takes a bound.

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
