"""The ``memory`` suite: the memory that compressing and decompressing a large file takes."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from tersor.bench.core import machine
from tersor.bench.core.resident import can_measure_resident, child_report
from tersor.bench.core.roundtrip import worst_error
from tersor.bench.core.rows import ResultRow, row_identity, row_key
from tersor.bench.core.timing import Percentiles
from tersor.bench.kernels import memory_child
from tersor.codecs import registry
from tersor.container import Reader
from tersor.division import ceil_div
from tersor.errors import SpecError, TersorError
from tersor.types import Bound

FULL_FILE_NBYTES: Final = 4 * 2**30
SMOKE_FILE_NBYTES: Final = 2**24
_BLOCK_VALUES: Final = 1 << 22


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryConfig:
    """What to measure.

    Attributes:
        codec: id of a registered codec that takes a bound.
        relative_bound: relative bound for the whole file.
        nbytes: size of the float32 file.
        directory: directory for temporary files of about 2.5 times that size; None for the system's
            temporary directory.
        threads: threads that each process may use; None for as many as torch uses in this process.
    """

    codec: str = "flat"
    relative_bound: float = 0.01
    nbytes: int = FULL_FILE_NBYTES
    directory: str | None = None
    threads: int | None = None

    def identity(self) -> dict[str, Any]:
        """Return the identifying fields of the row."""
        codec = registry.create(self.codec, bound=Bound.relative(self.relative_bound))
        spec = {k: v for k, v in codec.to_config().items() if k not in ("id", "version")}
        return row_identity(
            suite="memory", codec=self.codec, version=str(codec.version), spec=spec, input="file",
            device="cpu", num_values=self.nbytes // 4,
            threads=self.threads or torch.get_num_threads(),
        )  # fmt: skip


def run_memory(config: MemoryConfig, *, done: frozenset[str] = frozenset()) -> ResultRow | None:
    """Compress a file to a container and decompress it, each in a separate process.

    Args:
        config: what to measure.
        done: keys of rows that exist already (``RowFile.keys``); the result is None for one of them.

    Raises:
        SpecError: this is not Linux, or the codec does not exist.
        TersorError: a direction failed, or the decoded file breaks the bound.
    """
    if not can_measure_resident():
        raise SpecError("peak memory can only be measured on Linux; run the kernels suite instead")
    identity = config.identity()
    if row_key(**identity) in done:
        return None
    with tempfile.TemporaryDirectory(dir=config.directory) as name:
        plain, packed, decoded = (Path(name) / f for f in ("in.f32", "packed.tsr", "out.f32"))
        _write_input(plain, config.nbytes)
        compressed = _child("compress", plain, packed, config, identity["threads"])
        decompressed = _child("decompress", packed, decoded, config, identity["threads"])
        with Reader(packed) as reader:
            (entry,) = reader.arrays.values()
        error_bound, error = entry.error_bound, _file_error(plain, decoded)
        encoded_nbytes = packed.stat().st_size
    if error_bound is not None and not error <= error_bound:
        raise TersorError(f"{config.codec} is refused: error {error} above the bound {error_bound}")
    return ResultRow(
        **identity,
        original_nbytes=config.nbytes,
        encoded_nbytes=encoded_nbytes,
        worst_error=error,
        error_bound=error_bound,
        encode_s=Percentiles.of([compressed["seconds"]]),
        decode_s=Percentiles.of([decompressed["seconds"]]),
        peak_extra_nbytes=max(compressed["extra_nbytes"], decompressed["extra_nbytes"]),
        note=(
            f"extra memory {compressed['extra_nbytes'] / 2**20:.0f} MiB compressing, "
            f"{decompressed['extra_nbytes'] / 2**20:.0f} MiB decompressing; times include the disk"
        ),
        versions=machine.versions(),
        machine=machine.machine(torch.device("cpu")),
    )


def _write_input(path: Path, nbytes: int) -> None:
    """Write noise on a slow wave; the noise repeats at a distance beyond any codec's window."""
    noise = np.random.default_rng(6).standard_normal(_BLOCK_VALUES, dtype=np.float32)
    with path.open("wb") as file:
        for index in range(ceil_div(nbytes, noise.nbytes)):
            block = noise + np.float32(np.sin(index / 10))
            file.write(block.data[: (nbytes - index * noise.nbytes) // 4])


def _child(
    direction: str, source: Path, target: Path, config: MemoryConfig, threads: int
) -> dict[str, Any]:
    arguments = [direction, str(source), str(target), config.codec, repr(config.relative_bound)]
    failed = f"could not {direction} the file"
    return child_report(memory_child, [*arguments, str(threads)], failed)


def _file_error(original: Path, decoded: Path) -> float:
    if original.stat().st_size != decoded.stat().st_size:
        return float("inf")
    worst = 0.0
    with original.open("rb") as first, decoded.open("rb") as second:
        while block := first.read(4 * _BLOCK_VALUES):
            x = torch.frombuffer(bytearray(block), dtype=torch.float32)
            y = torch.frombuffer(bytearray(second.read(len(block))), dtype=torch.float32)
            worst = max(worst, worst_error(x, y))
    return worst
