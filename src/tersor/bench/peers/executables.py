"""Run other projects' benchmark programs from PATH on a file, and parse their output.

Times are by the programs' own clocks. Lossless programs get quantized codes and check their decoded output
themselves. ``sz3`` gets floats, and its result is checked here.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import signal
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import torch

from tersor.bench.core.roundtrip import worst_error
from tersor.bench.core.subject import Copy, Subject
from tersor.bench.core.timing import HostClock, Percentiles
from tersor.bench.peers.logs import FORMATS, ProgramRun, nothing_found, scan
from tersor.errors import BackendUnavailableError, SpecError
from tersor.types import bound_share

_VERSION_TIMEOUT_S: Final = 30.0
_MAX_DIMS: Final = 4
_ITERATIONS: Final = 10
_NVCOMP: Final = ("lz4", "snappy", "gdeflate", "deflate", "zstd", "ans", "bitcomp", "cascaded")


@dataclass(frozen=True, slots=True)
class Measured:
    """A program's results on a subject.

    Attributes:
        encoded_nbytes: encoded bytes of all slices.
        encode_s: seconds to encode all slices, over the rounds.
        decode_s: seconds to decode all slices, over the rounds.
        worst_error: as in a result row; None for codes.
        error_bound: as in a result row.
        memcpy_s: as in a result row; None unless the program starts from floats.
    """

    encoded_nbytes: int
    encode_s: Percentiles
    decode_s: Percentiles
    worst_error: float | None = None
    error_bound: float | None = None
    memcpy_s: Percentiles | None = None


class Executable(ABC):
    """A program that compresses, decompresses and reports how long each took.

    Attributes:
        name: name in tables and rows.
        path: path of the executable.
        log_format: name of the parser for its output.
        device: device on which it computes.
        version: the version that it reports, or a hash of its file.
        note: caveats for readers who compare its rows.
    """

    log_format: ClassVar[str]
    device: ClassVar[str] = "cuda"
    note: ClassVar[str] = "codes to bytes and back, without quantizing; by the program's own clock"

    def __init__(self, name: str, program: str) -> None:
        """Find ``program`` on PATH.

        Raises:
            BackendUnavailableError: the program is not on PATH.
        """
        found = shutil.which(program)
        if found is None:
            raise BackendUnavailableError(f"{program} is not on PATH")
        self.name = name
        self.path = found
        self.version = self._version()

    def _version(self) -> str:
        """Return a hash of the program's file, because few programs report their version."""
        return f"sha256:{hashlib.sha256(Path(self.path).read_bytes()).hexdigest()[:12]}"

    def options(self) -> dict[str, Any]:
        """Return the JSON-ready options that affect the result, except the bound."""
        return {}

    @abstractmethod
    def measure(self, subject: Subject, *, rounds: int, timeout_s: float) -> Measured:
        """Run the program on a subject, ``rounds`` times.

        Args:
            subject: a subject with a bound, on the device on which the program computes.
            rounds: runs whose times count.
            timeout_s: time limit of one run in seconds.

        Raises:
            BackendUnavailableError: the program failed, timed out, or printed implausible output.
        """

    def run(self, arguments: Sequence[str], folder: Path, timeout_s: float) -> ProgramRun:
        """Run the program once and parse its output; raises like ``measure``."""
        text = _output_of([self.path, *arguments], folder, timeout_s)
        log_format, where = FORMATS[self.log_format], f"the output of {Path(self.path).name}"
        parsed = scan(text, log_format, where)
        if not (parsed.runs or parsed.complaints):
            raise BackendUnavailableError(
                f"{nothing_found(log_format, where)}; its version may print other lines, or another "
                "program has its name"
            )
        if parsed.complaints or len(parsed.runs) != 1:
            found = f"{Path(self.path).name} reports {len(parsed.runs)} runs instead of one"
            raise BackendUnavailableError(next(iter(parsed.complaints), found))
        return parsed.runs[0]


def _output_of(command: Sequence[str], folder: Path, timeout_s: float) -> str:
    """Return a command's stdout and stderr; its whole process group is killed when it ends."""
    name = Path(command[0]).name
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(  # noqa: S603 (a program that the user put on PATH)
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise BackendUnavailableError(f"{name} does not start: {error.strerror}") from error
        try:
            code = process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise BackendUnavailableError(
                f"{name} was stopped after {timeout_s:g} s without an end"
            ) from error
        finally:
            # also kill the children of a script that has ended, which could go on using the accelerator
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        text = output.read().decode("utf-8", errors="replace")
    if code != 0:
        said = [line.strip() for line in text.splitlines() if line.strip()]
        words = f" after saying {said[-1]!r}" if said else ""
        raise BackendUnavailableError(f"{name} ended with exit code {code}{words}")
    return text


class CodesProgram(Executable):
    """A lossless program, run on one file that holds the codes of all slices."""

    def measure(self, subject: Subject, *, rounds: int, timeout_s: float) -> Measured:
        """See ``Executable.measure``."""
        codes = self.prepare(_joined(subject.codes))
        runs = []
        with tempfile.TemporaryDirectory(prefix="tersor-") as folder:
            path = Path(folder) / "codes.bin"
            codes.tofile(path)
            for _ in range(rounds):
                run = self.run(self.arguments(path, codes), Path(folder), timeout_s)
                if run.given_nbytes not in (None, codes.nbytes):
                    raise BackendUnavailableError(
                        f"{Path(self.path).name} counts {run.given_nbytes} bytes where it was given "
                        f"{codes.nbytes}"
                    )
                runs.append(run)
        return Measured(
            encoded_nbytes=max(run.encoded_size(codes.nbytes) for run in runs),
            encode_s=Percentiles.of([run.encode_seconds(codes.nbytes) for run in runs]),
            decode_s=Percentiles.of([run.decode_seconds(codes.nbytes) for run in runs]),
        )

    def prepare(self, codes: np.ndarray) -> np.ndarray:
        """Convert the codes to the program's input format; not timed."""
        return codes

    @abstractmethod
    def arguments(self, path: Path, codes: np.ndarray) -> list[str]:
        """Return the command line after the program's name."""


def _joined(codes: Sequence[torch.Tensor]) -> np.ndarray:
    """Concatenate all codes into one array of the widest of their dtypes."""
    if not codes:
        raise SpecError("a program that takes codes needs an input with a bound")
    wide = torch.int16 if any(one.dtype == torch.int16 for one in codes) else torch.int8
    joined: np.ndarray = torch.cat([one.to(wide) for one in codes]).cpu().numpy()
    return joined


class NvcompProgram(CodesProgram):
    """One of nvCOMP's ``benchmark_*_chunked``."""

    log_format = "nvcomp"

    def options(self) -> dict[str, Any]:
        """Return the number of iterations that each printed time is the mean of."""
        return {"iterations": _ITERATIONS}

    def arguments(self, path: Path, codes: np.ndarray) -> list[str]:
        """See ``CodesProgram.arguments``."""
        del codes
        return ["-f", str(path), "-w", "2", "-i", str(_ITERATIONS)]


class GpulzProgram(CodesProgram):
    """``gpulz``, with the symbol size and window for which it was compiled."""

    log_format = "gpulz"

    def arguments(self, path: Path, codes: np.ndarray) -> list[str]:
        """See ``CodesProgram.arguments``."""
        del codes
        return ["-i", str(path)]


class CuszHuffmanProgram(CodesProgram):
    """cuSZ's ``bin_hf`` of 2024, which takes the length of the codebook and a data type."""

    log_format = "cusz"

    def prepare(self, codes: np.ndarray) -> np.ndarray:
        """Shift the codes so that they start at 0."""
        shifted: np.ndarray = (codes.astype(np.int32) - int(codes.min())).astype(
            f"u{codes.itemsize}"
        )
        return shifted

    def arguments(self, path: Path, codes: np.ndarray) -> list[str]:
        """See ``CodesProgram.arguments``."""
        # the program requires 256 for bytes; otherwise use the next power of two
        length = 256 if codes.itemsize == 1 else 1 << int(codes.max()).bit_length()
        return [str(path), str(codes.size), "1", "1", str(length), f"u{codes.itemsize}"]


class Sz3Program(Executable):
    """The command ``sz3`` with an absolute bound, run on every slice separately."""

    log_format = "sz3"
    device = "cpu"
    note = "absolute bound given; by the program's own clock"

    def _version(self) -> str:
        said = _output_of([self.path, "-v"], Path.cwd(), _VERSION_TIMEOUT_S)
        found = [line for line in said.splitlines() if line.startswith("SZ3 Version: ")]
        return found[0].removeprefix("SZ3 Version: ").strip() if found else super()._version()

    def measure(self, subject: Subject, *, rounds: int, timeout_s: float) -> Measured:
        """See ``Executable.measure``."""
        pairs = list(zip(subject.slices, subject.error_bounds, strict=True))
        with tempfile.TemporaryDirectory(prefix="tersor-") as name:
            folder = Path(name)
            seconds, nbytes, errors = [], 0, []
            # copy once before timing, because the first copy into new memory causes page faults
            for copy in subject.copies:
                _copy_seconds(copy)
            for turn in range(rounds):
                copy_s = _copy_seconds(subject.copies[turn % len(subject.copies)])
                runs = []
                for x, bound in pairs:
                    runs.append(self.run(_sz3_arguments(x, bound, folder), folder, timeout_s))
                    if turn == 0:
                        found = self._result(x, folder)
                        nbytes += found[0]
                        errors.append((found[1], bound))
                sums = [sum(r.encode_s or 0.0 for r in runs), sum(r.decode_s or 0.0 for r in runs)]
                seconds.append([*sums, copy_s])
        times = [Percentiles.of(list(column)) for column in zip(*seconds, strict=True)]
        worst, bound = max(errors, key=lambda pair: bound_share(*pair))
        return Measured(nbytes, times[0], times[1], worst, bound, memcpy_s=times[2])

    def _result(self, x: torch.Tensor, folder: Path) -> tuple[int, float]:
        """Return the size of one encoded slice and the worst error of the decoded slice."""
        name = Path(self.path).name
        encoded, decoded = folder / "encoded", folder / "decoded"
        if not (encoded.is_file() and decoded.is_file()):
            raise BackendUnavailableError(f"{name} ended well without writing its files")
        if decoded.stat().st_size != x.nbytes:
            raise BackendUnavailableError(
                f"{name} decoded {decoded.stat().st_size} bytes where it was given {x.nbytes}"
            )
        values = torch.from_numpy(np.fromfile(decoded, dtype=np.float32)).view(x.shape)
        error = worst_error(x.cpu(), values)
        if not math.isfinite(error):
            raise BackendUnavailableError(f"{name} decoded values that are not finite")
        return encoded.stat().st_size, error


def _copy_seconds(copy: Copy) -> float:
    """Return the seconds to copy all slices with one thread, as for a row's ``memcpy_s``."""

    def task() -> None:
        for x, out in zip(copy.slices, copy.outs, strict=True):
            np.copyto(out.numpy(), x.numpy())

    return HostClock().seconds(task)


def _sz3_arguments(x: torch.Tensor, error_bound: float, folder: Path) -> list[str]:
    """Write one slice to a file, and return the arguments that compress and decompress it.

    Files of an earlier run are removed, so that they cannot be mistaken for the results of this one.
    """
    for name in ("encoded", "decoded"):
        (folder / name).unlink(missing_ok=True)
    values = x.cpu().contiguous()
    values.numpy().tofile(folder / "values")
    shape = values.shape if 1 <= values.dim() <= _MAX_DIMS else (values.numel(),)
    # sz3 expects the fastest-varying axis first
    sizes = [str(size) for size in reversed(shape)]
    return [
        "-f", "-i", str(folder / "values"), "-z", str(folder / "encoded"),
        "-o", str(folder / "decoded"), f"-{len(sizes)}", *sizes, "-M", "ABS", f"{error_bound:.17g}",
    ]  # fmt: skip


EXECUTABLES: Final[Mapping[str, tuple[type[Executable], str]]] = {
    "sz3-cli": (Sz3Program, "sz3"),
    **{f"nvcomp-{n}-chunked": (NvcompProgram, f"benchmark_{n}_chunked") for n in _NVCOMP},
    "gpulz": (GpulzProgram, "gpulz"),
    "cusz-hf": (CuszHuffmanProgram, "bin_hf"),
}
"""The adapter of each program and its name on PATH, by its name in rows."""


def executables_of(device: str) -> tuple[str, ...]:
    """Return the names of the programs that compute on ``"cpu"`` or on ``"cuda"``."""
    return tuple(name for name, (kind, _) in EXECUTABLES.items() if kind.device == device)


def is_on_path(name: str) -> bool:
    """Return True if a program of ``EXECUTABLES`` is on PATH, whether it works or not."""
    return shutil.which(EXECUTABLES[name][1]) is not None


def find_executables(names: Sequence[str]) -> tuple[list[Executable], list[str]]:
    """Return the programs that are on PATH and load, and sentences on those that are left out.

    Raises:
        SpecError: a name is unknown.
    """
    found, absent, others = [], [], []
    for name in names:
        if name not in EXECUTABLES:
            raise SpecError(f"programs are {', '.join(EXECUTABLES)}, not {name!r}")
        kind, program = EXECUTABLES[name]
        if not is_on_path(name):
            absent.append(program)
            continue
        try:
            found.append(kind(name, program))
        except BackendUnavailableError as error:
            others.append(f"left out: {name}: {error}")
    if absent:
        others.append(f"left out: not on PATH: {', '.join(absent)}")
    return found, others
