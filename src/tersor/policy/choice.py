"""Selection of the codec that makes an exchange fastest, by trials on a sample or by device costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Final

import torch

from tersor.codecs.arguments import materialised
from tersor.codecs.codec import Codec
from tersor.codecs.costs import Costs, median_seconds
from tersor.errors import SpecError

_MEASURED: Final = ("ratio", "encode_gbps", "decode_gbps")


def predicted_speedup(
    *, ratio: float, encode_gbps: float, decode_gbps: float, bandwidth_gbit_s: float
) -> float:
    """Return how many times faster an exchange is with compression than without.

    The speed-up is ``1 / (1 / ratio + bandwidth * (1 / encode + 1 / decode))``: sending takes ``1 / ratio``
    of the time, and encoding and decoding are added to it. Speeds are in 10**9 bytes of uncompressed data
    per second, the bandwidth in 10**9 bits per second.

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
    """Result of a codec on a sample: original / encoded bytes, and speeds in GB/s of original data."""

    codec: Codec
    _: KW_ONLY
    ratio: float
    encode_gbps: float
    decode_gbps: float

    def speedup(self, bandwidth_gbit_s: float) -> float:
        """Return ``predicted_speedup`` at a bandwidth."""
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
        """Choose the trial with the largest predicted speed-up; the first one wins ties."""
        best = max(trials, key=lambda trial: trial.speedup(bandwidth_gbit_s))
        return cls(best, tuple(trials), bandwidth_gbit_s)

    @property
    def speedup(self) -> float:
        """Predicted speed-up of the best trial."""
        return self.best.speedup(self.bandwidth_gbit_s)

    @property
    def best_index(self) -> int:
        """Index of the best trial in ``trials``."""
        return next(k for k, trial in enumerate(self.trials) if trial is self.best)

    def resized(self, sample: torch.Tensor, codecs: Sequence[Codec]) -> Choice:
        """Choose again, by the ratios on a new sample and the speeds of this choice.

        Ratios depend only on the data, so runs that continue from the same choice choose alike. Speeds
        measured again would differ.

        Args:
            sample: current data of the exchange; not empty.
            codecs: those of ``trials``, in the same order; their bounds may differ.
        """
        x = materialised(sample)
        trials = [
            replace(trial, codec=codec, ratio=codec.pack(x).ratio)
            for trial, codec in zip(self.trials, codecs, strict=True)
        ]
        return Choice.of(trials, self.bandwidth_gbit_s)

    def to_config(self) -> list[dict[str, float]]:
        """Return the measurements of each trial, as JSON values."""
        return [trial.measured() for trial in self.trials]

    @classmethod
    def from_config(
        cls,
        config: Sequence[Mapping[str, Any]],
        codecs: Sequence[Codec],
        bandwidth_gbit_s: float,
    ) -> Choice:
        """Rebuild a choice between codecs from the result of ``to_config``.

        Raises:
            SpecError: ``config`` is malformed, or has another number of codecs.
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
    """Time encoding and decoding of a sample over a few runs, after an untimed one.

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
    """Measure the ratio on a sample, and compute the speeds from the costs of its device.

    Args:
        codec: one that ``costs`` covers.
        sample: representative part of the data; not empty.
        costs: of the device.
        nbytes: original bytes of all the data that the sample represents.
        num_sharing: number of tensors encoded in one call, which share its fixed cost.

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
    """Try codecs on a sample and choose the one with the largest predicted speed-up.

    Args:
        sample: the data, or a typical part of it; not empty.
        codecs: at least one.
        bandwidth_gbit_s: of the link, 10**9 bits per second.
        trial: evaluates one codec on the sample: ``measure``, or ``estimate`` with costs.

    Raises:
        SpecError: there are no codecs or no values, or the bandwidth is not above 0.
    """
    if not codecs or sample.numel() == 0:
        raise SpecError("choosing a codec needs at least one codec and a sample with values")
    if not bandwidth_gbit_s > 0:
        raise SpecError(f"the bandwidth must be above 0 Gbit/s, not {bandwidth_gbit_s}")
    return Choice.of([trial(codec, sample) for codec in codecs], bandwidth_gbit_s)
