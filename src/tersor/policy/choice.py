"""Which codec makes an exchange fastest, from what each really does on a sample."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import torch

from tersor.codecs.codec import Codec, materialised
from tersor.errors import SpecError

_ROUNDS: Final = 3


def predicted_speedup(
    ratio: float, encode_gbps: float, decode_gbps: float, bandwidth_gbps: float
) -> float:
    """Return how many times faster an exchange is than without compression.

    ``1 / (1 / ratio + bandwidth * (1 / encode + 1 / decode))``: sending takes ``1 / ratio`` of the
    time, and encoding and decoding what their speed says. All speeds are 10**9 bytes per second, of
    uncompressed data for encoding and decoding.

    Example:
        >>> predicted_speedup(ratio=10.0, encode_gbps=100.0, decode_gbps=100.0, bandwidth_gbps=5.0)
        5.0
    """
    return 1.0 / (1.0 / ratio + bandwidth_gbps * (1.0 / encode_gbps + 1.0 / decode_gbps))


@dataclass(frozen=True, slots=True)
class Trial:
    """What a codec did on a sample: original / encoded bytes, and speeds in GB/s of the original."""

    codec: Codec
    ratio: float
    encode_gbps: float
    decode_gbps: float

    def speedup(self, bandwidth_gbps: float) -> float:
        """See ``predicted_speedup``."""
        return predicted_speedup(self.ratio, self.encode_gbps, self.decode_gbps, bandwidth_gbps)


@dataclass(frozen=True, slots=True)
class Choice:
    """The best of several trials at a bandwidth in GB/s."""

    best: Trial
    trials: tuple[Trial, ...]
    bandwidth_gbps: float

    @property
    def speedup(self) -> float:
        """Predicted speed-up of the best."""
        return self.best.speedup(self.bandwidth_gbps)


def _seconds(task: Callable[[], object], device: torch.device) -> float:
    def once() -> float:
        begin = time.perf_counter()
        task()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begin

    once()
    return max(median(once() for _ in range(_ROUNDS)), 1e-9)


def measure(codec: Codec, sample: torch.Tensor) -> Trial:
    """Encode and decode a sample a few times, after one that does not count.

    Raises:
        SpecError: the codec cannot encode the sample.
    """
    codec.check_supported(sample.dtype)
    x, out = materialised(sample), torch.empty_like(sample, memory_format=torch.contiguous_format)
    payload = codec.encode_tensor(x)
    encode_s = _seconds(lambda: codec.encode_tensor(x), x.device)
    decode_s = _seconds(lambda: codec.decode_payload(payload, out), x.device)
    return Trial(
        codec,
        ratio=x.nbytes / max(1, payload.numel()),
        encode_gbps=x.nbytes / encode_s / 1e9,
        decode_gbps=x.nbytes / decode_s / 1e9,
    )


def choose(sample: torch.Tensor, codecs: Sequence[Codec], bandwidth_gbps: float) -> Choice:
    """Measure codecs on a sample and take the one with the largest predicted speed-up.

    Args:
        sample: what is sent, or a part of it that is typical; not empty.
        codecs: at least one.
        bandwidth_gbps: of the link, 10**9 bytes per second.

    Raises:
        SpecError: nothing to choose from, or no bandwidth.
    """
    if not codecs or sample.numel() == 0:
        raise SpecError("choosing a codec needs at least one codec and a sample with values")
    if not bandwidth_gbps > 0:
        raise SpecError(f"the bandwidth must be above 0 GB/s, not {bandwidth_gbps}")
    trials = tuple(measure(codec, sample) for codec in codecs)
    best = max(trials, key=lambda trial: trial.speedup(bandwidth_gbps))
    return Choice(best, trials, bandwidth_gbps)
