"""The memory of a step falls with what is held, as the system sees it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.arch.source_files import REPOSITORY


def _grown_nbytes(codec: str) -> tuple[int, int]:
    """Return by how much the process grew after the forward pass, and at most."""
    command = [sys.executable, "-m", "tests.sites.activations.peak_child", codec]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    held, most = map(int, run.stdout.split())
    return held, most


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
@pytest.mark.parametrize("codec", ["rms", "ans"])
def test_resident_memory_of_a_step_is_at_least_halved(codec) -> None:
    plain_held, plain_most = _grown_nbytes("none")
    held, most = _grown_nbytes(codec)
    # seen: 432 to 33 MiB after forward, 496 to 124 MiB at most
    assert plain_held > 4 * held
    assert plain_most > 2 * most
