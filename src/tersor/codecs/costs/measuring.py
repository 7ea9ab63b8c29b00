"""Measurement of codec costs on a GPU: wall time at two sizes, including host time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Final

import torch

from tersor.codecs.codec import Codec
from tersor.codecs.costs.table import WIDE_ANS, CodecCost, Costs
from tersor.codecs.raw import Raw
from tersor.codecs.rows import Rows
from tersor.codecs.stream import Ans, Delta, Flat
from tersor.types import Bound

Task = Callable[[], object]
Clock = Callable[[Task, torch.device, int], float]
"""Returns the median time of a task on a device in seconds, over the given number of rounds."""
_BOUND: Final = Bound.relative(0.03)
_TIGHT_BOUND: Final = Bound.relative(0.001)
"""Yields about 500 codes, more than the fused kernel of ``ans`` supports."""
MEASURED: Final[dict[str, Codec]] = {
    "flat": Flat(bound=_BOUND),
    "ans": Ans(bound=_BOUND),
    WIDE_ANS: Ans(bound=_TIGHT_BOUND),
    "delta": Delta(bound=_BOUND),
    "rows": Rows(bound=_BOUND, entropy="ans"),
    "raw": Raw(),
}
"""The codecs to measure, by the name of their cost."""
_ROW_WIDTH: Final = 64
_NUM_REPEATS: Final = 8
"""How often each row occurs in the data for ``rows``, about as often as in the look-ups behind the shipped costs."""
_SMALL_NBYTES: Final = 1 << 16
_LARGE_NBYTES: Final = 1 << 28
"""64 MiB would be too small: ``flat`` takes 228 us for it on an H200, of which 183 are the fixed time (``shipped``)."""
_NUM_ROUNDS: Final = 5
_FREE_SHARE: Final = 32
"""The large tensor takes at most 1/32 of the free memory, because encoding needs several times its size."""


def median_seconds(task: Task, device: torch.device, num_rounds: int = 3) -> float:
    """Return the median wall time of ``task`` in seconds, device synchronisation included, after one warm-up run."""

    def once() -> float:
        begin = time.perf_counter()
        task()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begin

    once()
    return max(median(once() for _ in range(num_rounds)), 1e-9)


def measure_costs(
    device: torch.device,
    name: str,
    sizes: tuple[int, int] | None = None,
    clock: Clock = median_seconds,
) -> Costs:
    """Time encoding and decoding with each codec at two tensor sizes, and return the costs.

    This takes a fraction of a second once the kernels are compiled. It does not touch the caller's random state.

    Args:
        device: the device to measure.
        name: name of the device.
        sizes: bytes of the small and the large tensor; by default 64 KiB, and 256 MiB or less if little memory is
            free.
        clock: times a task.
    """
    small, large = sizes or (_SMALL_NBYTES, _large_nbytes(device))
    times = [_times(device, nbytes, clock) for nbytes in (small, large)]
    measured = {}
    for codec in MEASURED:
        lines = [_line((small, large), [each[codec][k] for each in times]) for k in range(2)]
        measured[codec] = CodecCost.of(*lines)
    return Costs(name, "measured", measured)


def _large_nbytes(device: torch.device) -> int:
    free_nbytes, _ = torch.cuda.mem_get_info(device)
    return max(4 * _SMALL_NBYTES, min(_LARGE_NBYTES, free_nbytes // _FREE_SHARE))


def _times(device: torch.device, nbytes: int, clock: Clock) -> dict[str, tuple[float, float]]:
    """Return the times to encode and to decode about ``nbytes`` of float32 in seconds, by codec."""
    generator = torch.Generator(device).manual_seed(0)
    num_rows = max(_NUM_REPEATS, nbytes // (4 * _ROW_WIDTH))
    shape = (num_rows, _ROW_WIDTH)
    noise = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
    places = torch.randint(
        0, num_rows // _NUM_REPEATS, (num_rows,), generator=generator, device=device
    )
    repeated, out = noise[places], torch.empty_like(noise)
    found = {}
    for name, codec in MEASURED.items():
        x = repeated if isinstance(codec, Rows) else noise
        packed = codec.pack(x)
        encode_s = clock(partial(codec.pack, x), device, _NUM_ROUNDS)
        decode_s = clock(partial(codec.unpack, packed, out), device, _NUM_ROUNDS)
        found[name] = encode_s, decode_s
    return found


def _line(sizes: tuple[int, int], times: Sequence[float]) -> tuple[float, float]:
    """Return the fixed time in us and the speed in GB/s of a line through two measurements.

    If the large tensor took no longer than the small one, host time dominates both, and the speed is at least that of
    the whole call.
    """
    (small, large), (small_s, large_s) = sizes, times
    if large_s <= small_s:
        return small_s * 1e6, large / large_s / 1e9
    bytes_per_s = (large - small) / (large_s - small_s)
    return max(0.0, small_s - small / bytes_per_s) * 1e6, bytes_per_s / 1e9
