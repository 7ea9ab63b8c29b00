"""Which codec makes an exchange fastest, from what each does on a sample, or costs on its device."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Final

import torch

from tersor.codecs.codec import Codec, materialised
from tersor.codecs.costs import Costs, median_seconds
from tersor.errors import SpecError

_MEASURED: Final = ("ratio", "encode_gbps", "decode_gbps")


def predicted_speedup(
    *, ratio: float, encode_gbps: float, decode_gbps: float, bandwidth_gbit_s: float
) -> float:
    """Return how many times faster an exchange is than without compression.

    ``1 / (1 / ratio + bandwidth * (1 / encode + 1 / decode))``: sending takes ``1 / ratio`` of the
    time, and encoding and decoding what their speed says: 10**9 bytes of uncompressed data per second.
    A bandwidth is 10**9 bits per second, an eighth of it in the same unit.

    Example:
        >>> predicted_speedup(
        ...     ratio=10.0, encode_gbps=100.0, decode_gbps=100.0, bandwidth_gbit_s=40.0
        ... )
        5.0
    """
    per_byte = 1.0 / encode_gbps + 1.0 / decode_gbps
    return 1.0 / (1.0 / ratio + bandwidth_gbit_s / 8 * per_byte)


@dataclass(frozen=True, slots=True)
class Trial:
    """What a codec did on a sample: original / encoded bytes, and speeds in GB/s of the original."""

    codec: Codec
    _: KW_ONLY
    ratio: float
    encode_gbps: float
    decode_gbps: float

    def speedup(self, bandwidth_gbit_s: float) -> float:
        """See ``predicted_speedup``."""
        return predicted_speedup(bandwidth_gbit_s=bandwidth_gbit_s, **self.measured())

    def measured(self) -> dict[str, float]:
        """Return the ratio and the speeds by name."""
        return {name: getattr(self, name) for name in _MEASURED}


@dataclass(frozen=True, slots=True)
class Choice:
    """The best of several trials at a bandwidth."""

    best: Trial
    trials: tuple[Trial, ...]
    bandwidth_gbit_s: float

    @classmethod
    def of(cls, trials: Sequence[Trial], bandwidth_gbit_s: float) -> Choice:
        """Return the choice of the trial with the largest predicted speed-up, the first of equals."""
        best = max(trials, key=lambda trial: trial.speedup(bandwidth_gbit_s))
        return cls(best, tuple(trials), bandwidth_gbit_s)

    @property
    def speedup(self) -> float:
        """Predicted speed-up of the best."""
        return self.best.speedup(self.bandwidth_gbit_s)

    @property
    def best_index(self) -> int:
        """Which of the trials is the best."""
        return next(k for k, trial in enumerate(self.trials) if trial is self.best)

    def resized(self, sample: torch.Tensor, codecs: Sequence[Codec]) -> Choice:
        """Choose again, by the ratios on a new sample and the speeds of this choice.

        Ratios follow from the data alone, so runs that go on from the same choice choose alike;
        measured speeds would not repeat.

        Args:
            sample: what is sent now; not empty.
            codecs: those of ``trials``, in the same order; their bounds may differ.
        """
        x = materialised(sample)
        trials = [
            replace(trial, codec=codec, ratio=codec.pack(x).ratio)
            for trial, codec in zip(self.trials, codecs, strict=True)
        ]
        return Choice.of(trials, self.bandwidth_gbit_s)

    def to_config(self) -> list[dict[str, float]]:
        """Return what was measured of each trial, in the form that JSON can hold."""
        return [trial.measured() for trial in self.trials]

    @classmethod
    def from_config(
        cls,
        config: Sequence[Mapping[str, Any]],
        codecs: Sequence[Codec],
        bandwidth_gbit_s: float,
    ) -> Choice:
        """Rebuild a choice between codecs from what was measured of them.

        Raises:
            SpecError: this is no such form, or is one of another number of codecs.
        """
        try:
            measured = [{name: float(trial[name]) for name in _MEASURED} for trial in config]
            pairs = zip(codecs, measured, strict=True)
            trials = [Trial(codec, **values) for codec, values in pairs]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SpecError("this is no saved choice between these codecs") from error
        if not all(0 < value < math.inf for values in measured for value in values.values()):
            raise SpecError("a saved choice has ratios and speeds above 0, not others")
        return cls.of(trials, bandwidth_gbit_s)


def measure(codec: Codec, sample: torch.Tensor) -> Trial:
    """Encode and decode a sample a few times, after one that does not count.

    Raises:
        SpecError: the codec cannot encode the sample.
    """
    codec.check_supported(sample.dtype)
    x, out = materialised(sample), torch.empty_like(sample, memory_format=torch.contiguous_format)
    packed = codec.pack(x)
    encode_s = median_seconds(lambda: codec.pack(x), x.device)
    decode_s = median_seconds(lambda: codec.unpack(packed, out), x.device)
    return Trial(
        codec,
        ratio=packed.ratio,
        encode_gbps=x.nbytes / encode_s / 1e9,
        decode_gbps=x.nbytes / decode_s / 1e9,
    )


def estimate(
    codec: Codec, sample: torch.Tensor, *, costs: Costs, nbytes: int, num_sharing: int
) -> Trial:
    """Encode a sample for its ratio, and take the speeds from the costs of its device.

    Args:
        codec: one that ``costs`` have.
        sample: a part of what is sent; not empty.
        costs: of the device.
        nbytes: of all that is sent in place of the sample.
        num_sharing: tensors that are encoded in one call, and share its fixed cost.

    Raises:
        SpecError: the codec cannot encode the sample.
    """
    x = materialised(sample)
    packed = codec.pack(x)
    cost = costs.of(codec.codec_id, x, packed.error_bound)
    return Trial(
        codec,
        ratio=packed.ratio,
        encode_gbps=nbytes / cost.encoding_s(nbytes, num_sharing) / 1e9,
        decode_gbps=nbytes / cost.decoding_s(nbytes, num_sharing) / 1e9,
    )


def choose(
    sample: torch.Tensor,
    codecs: Sequence[Codec],
    bandwidth_gbit_s: float,
    trial: Callable[[Codec, torch.Tensor], Trial] = measure,
) -> Choice:
    """Try codecs on a sample and take the one with the largest predicted speed-up.

    Args:
        sample: what is sent, or a part of it that is typical; not empty.
        codecs: at least one.
        bandwidth_gbit_s: of the link, 10**9 bits per second.
        trial: tries one codec on the sample: ``measure``, or ``estimate`` with costs.

    Raises:
        SpecError: nothing to choose from, or no bandwidth.
    """
    if not codecs or sample.numel() == 0:
        raise SpecError("choosing a codec needs at least one codec and a sample with values")
    if not bandwidth_gbit_s > 0:
        raise SpecError(f"the bandwidth must be above 0 Gbit/s, not {bandwidth_gbit_s}")
    return Choice.of([trial(codec, sample) for codec in codecs], bandwidth_gbit_s)
