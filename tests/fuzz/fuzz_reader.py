"""Fuzz the container reader and, behind valid checksums, every payload decoder.

Needs atheris, which is not among the development packages::

    pip install atheris
    PYTHONPATH=src:. python tests/fuzz/fuzz_reader.py -max_total_time=600 -rss_limit_mb=4096 CORPUS

CORPUS is any empty folder; it is not kept. Without atheris the same target runs on random bytes::

    PYTHONPATH=src:. python tests/fuzz/fuzz_reader.py --random SECONDS

A failure is repeated with the file that atheris writes, or the seed that is printed.
"""

from __future__ import annotations

import inspect
import random
import sys
import time

from tersor.container import header, index, reader
from tersor.kernels.entropy.symbols import body
from tersor.kernels.payload import compose as payload
from tersor.kernels.rows import compose
from tests.fuzz.mutation import Choices, mutate, read_or_refuse, seed_files


def target(data: bytes) -> None:
    """Read one file built from ``data``: as it stands, or as decisions how to damage a file."""
    if data[:1] == b"\x89":
        read_or_refuse(data)
    else:
        read_or_refuse(mutate(Choices(data)))


def run_random(seconds: float) -> None:
    """Call the target on random bytes; the seed of the current one is shown if it fails."""
    stop = time.monotonic() + seconds
    seed = 0
    while time.monotonic() < stop:
        try:
            target(random.Random(seed).randbytes(64))
        except BaseException:
            print(f"failed at seed {seed}", flush=True)
            raise
        seed += 1
    print(f"{seed} files, nothing but refusals")


def main() -> None:
    for data in seed_files():
        if not read_or_refuse(data):
            raise AssertionError("a file that was just written is refused")
    if sys.argv[1:2] == ["--random"]:
        run_random(float(sys.argv[2]))
        return
    import atheris

    # only the readers: instrumenting all that torch brings takes longer than the fuzzing
    for module in (header, index, reader, payload, body, compose):
        for name, function in vars(module).items():
            if inspect.isfunction(function) and function.__module__ == module.__name__:
                setattr(module, name, atheris.instrument_func(function))
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
