"""Compress a file to a container, or decompress it, in a separate process.

``python -m tersor.bench.kernels.memory_child compress|decompress SOURCE TARGET CODEC RELATIVE_BOUND
THREADS`` streams one float32 file and writes one JSON object to standard output: the seconds taken, the
peak memory beyond what the process held after its imports and a small warm-up run, and its threads.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from tersor.bench.core.resident import (
    peak_resident_nbytes,
    reset_peak_resident,
    resident_nbytes,
)
from tersor.chunks import ChunkPlan
from tersor.codecs import registry
from tersor.container import FILE_CHUNK_VALUES, Reader, Writer
from tersor.kernels.quantize import finite_range
from tersor.types import Bound, TensorInfo

_NAME = "array"
_WARM_UP_VALUES = 1 << 19
"""2 MiB, which is enough to run the multi-threaded kernels, too."""


def _chunks(path: Path, info: TensorInfo) -> Iterator[torch.Tensor]:
    """Read the file chunk by chunk; it is not memory-mapped, because mapped pages count as resident."""
    with path.open("rb") as file:
        for chunk in ChunkPlan(info.shape, FILE_CHUNK_VALUES):
            values = torch.empty(chunk.stop - chunk.start, dtype=info.dtype)
            file.readinto(values.numpy().data)
            yield values


def _compress(source: Path, target: Path, codec_id: str, bound: Bound) -> None:
    info = TensorInfo((source.stat().st_size // 4,), torch.float32)
    low, high = math.inf, -math.inf
    for values in _chunks(source, info):
        chunk_low, chunk_high = finite_range(values).tolist()
        low, high = min(low, chunk_low), max(high, chunk_high)
    codec = registry.create(codec_id, bound=bound)
    with Writer(target) as writer:
        writer.add_chunks(_NAME, info, codec, bound.resolve(low, high), _chunks(source, info))


def _decompress(source: Path, target: Path) -> None:
    with Reader(source) as reader, target.open("wb") as file:
        for values in reader.iter_chunks(_NAME):
            file.write(values.numpy().data)


def _warm_up(directory: Path, codec_id: str, bound: Bound) -> None:
    """Compile kernels and fill pools, so that only memory that depends on the array is counted."""
    plain, packed = directory / "warm-up.f32", directory / "warm-up.tsr"
    torch.randn(_WARM_UP_VALUES, generator=torch.Generator().manual_seed(0)).numpy().tofile(plain)
    _compress(plain, packed, codec_id, bound)
    _decompress(packed, plain)
    plain.unlink()
    packed.unlink()


def main(arguments: list[str]) -> int:
    """Run one direction, print the report, and return the exit code."""
    direction, source, target, codec_id, relative_bound, threads = arguments
    torch.set_num_threads(int(threads))
    bound = Bound.relative(float(relative_bound))
    _warm_up(Path(target).parent, codec_id, bound)
    reset_peak_resident()
    before_nbytes = resident_nbytes()
    begin = time.perf_counter()
    if direction == "compress":
        _compress(Path(source), Path(target), codec_id, bound)
    else:
        _decompress(Path(source), Path(target))
    seconds = time.perf_counter() - begin
    extra_nbytes = peak_resident_nbytes() - before_nbytes
    report = {
        "seconds": seconds, "extra_nbytes": extra_nbytes, "threads": torch.get_num_threads(),
    }  # fmt: skip
    sys.stdout.write(json.dumps(report) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
