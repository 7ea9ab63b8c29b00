"""What only a process of its own can show: pipes, signals, memory, and what an import costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.arch.source_files import REPOSITORY

TERSOR = (sys.executable, "-m", "tersor")


@pytest.fixture
def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(REPOSITORY / "src")}


def test_pipes_carry_an_array_there_and_back(tmp_path, environment, noise) -> None:
    np.save(tmp_path / "a.npy", noise)
    with (tmp_path / "a.npy").open("rb") as source:
        compress = subprocess.Popen(
            [*TERSOR, "compress", "-", "--rel", "0.01", "--threads", "1"],
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )
    back = subprocess.run(
        [*TERSOR, "decompress", "-"],
        stdin=compress.stdout,
        capture_output=True,
        env=environment,
        check=True,
        timeout=120,
    )
    _, words = compress.communicate()
    assert compress.returncode == 0, words
    (tmp_path / "b.npy").write_bytes(back.stdout)
    found = np.load(tmp_path / "b.npy").astype(np.float64)
    bound = 0.01 * (float(noise.max()) - float(noise.min()))
    assert np.abs(found - noise).max() <= bound


def test_a_reader_that_goes_away_ends_the_command_quietly(tmp_path, environment) -> None:
    np.save(tmp_path / "a.npy", np.zeros(1 << 20, np.float32))
    compress = subprocess.Popen(
        [*TERSOR, "compress", "a.npy", "--codec", "raw", "-o", "-"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment,
    )
    # more than a pipe holds is still to come
    compress.stdout.read(8)
    compress.stdout.close()
    words = compress.stderr.read()
    compress.stderr.close()
    assert compress.wait(120) == 141
    assert words == b""


def test_ctrl_c_leaves_no_file(tmp_path, environment) -> None:
    noise = np.random.default_rng(0).standard_normal(1 << 23, dtype=np.float32)
    np.save(tmp_path / "a.npy", noise)
    options = ("--abs", "1e-4", "--codec", "zstd", "--option", "level=19", "--threads", "1")
    # a job in the background of a shell ignores the signal, and so would its children
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    compress = subprocess.Popen(
        [*TERSOR, "compress", "a.npy", *options, "--chunk-values", "500000"],
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment,
    )
    signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob(".tersor-*.tmp")) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [path.name for path in tmp_path.glob("*.tsr")] == []
    compress.send_signal(signal.SIGINT)
    words = compress.communicate(timeout=120)[1].decode()
    assert compress.returncode == 130
    assert "Traceback" not in words
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


PEAK = """
import json, sys
from tersor.cli import main
def held(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))
def there_and_back(name):
    main(["compress", f"{name}.npy", "--rel", "0.01", "--codec", "flat", "--chunk-values", "1048576"])
    main(["decompress", f"{name}.npy.tsr", "-o", f"{name}-2.npy"])
    main(["verify", f"{name}.npy", f"{name}-2.npy", "--rel", "0.01"])
there_and_back("two-chunks")
before = held("VmHWM:")
there_and_back("many-chunks")
sys.stderr.write(json.dumps(held("VmHWM:") - before))
"""


def test_memory_does_not_grow_with_the_file(tmp_path, environment) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory is only reported by Linux")
    chunk = np.random.default_rng(0).standard_normal(1048576, dtype=np.float32)
    for name, count in (("two-chunks", 2), ("many-chunks", 48)):
        np.save(tmp_path / f"{name}.npy", np.broadcast_to(chunk, (count, chunk.size)))
    done = subprocess.run(
        [sys.executable, "-c", PEAK],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    extra_nbytes = json.loads(done.stderr.splitlines()[-1])
    # What loading a kernel and the allocator take differs by up to 150 MB from run to run; holding
    # on to the file's pages took 500 MB.
    assert extra_nbytes < 60 * chunk.nbytes


def test_the_module_and_the_import_are_cheap_and_work(environment) -> None:
    script = (
        "import sys, tersor, tersor.cli\n"
        "heavy = {'numba', 'rich', 'typer', 'safetensors'} & set(sys.modules)\n"
        "print(heavy, 'tersor.bench' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.strip() == "set() False"
    version = subprocess.run(
        [*TERSOR, "--version"], capture_output=True, text=True, env=environment, check=True
    )
    assert version.stdout.startswith("tersor 0.")


def test_threads_are_set_for_the_process(tersor, noise) -> None:
    np.save("a.npy", noise)
    tersor.ok("compress", "a.npy", "--rel", "0.01", "--threads", "1")
    assert torch.get_num_threads() == 1
