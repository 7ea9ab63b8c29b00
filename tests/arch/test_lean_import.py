"""Each test imports tersor in a new interpreter and looks at what that did."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.arch.source_files import REPOSITORY

OPTIONAL = (
    "blosc2",
    "jinja2",
    "llvmlite",
    "lz4",
    "matplotlib",
    "msgspec",
    "numba",
    "pysz",
    "rich",
    "safetensors",
    "torchrec",
    "triton",
    "typer",
    "xxhash",
    "zfpy",
    "zstandard",
)
MAX_SECONDS_BEYOND_TORCH = 0.5

BLOCK = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""

OBSERVE = """
import json, os, sys, threading, time
import numpy, torch
def native_threads():
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
env, threads, native = dict(os.environ), threading.active_count(), native_threads()
start = time.perf_counter()
import tersor
print(json.dumps({
    "seconds": time.perf_counter() - start,
    "env": sorted(set(env.items()) ^ set(os.environ.items())),
    "threads": threading.active_count() - threads + native_threads() - native,
    "cuda": torch.cuda.is_initialized(),
    "modules": sorted({name.split(".")[0] for name in sys.modules}),
}))
"""


def _run(script: str) -> str:
    env = os.environ | {"PYTHONPATH": str(REPOSITORY / "src")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_block_hides_installed_packages() -> None:
    script = BLOCK + (
        "try:\n    import zstandard\nexcept ModuleNotFoundError as error:\n    print(error.name)"
    )
    assert _run(script).strip() == "zstandard"


def test_import_works_without_any_optional_package() -> None:
    script = BLOCK + "import tersor\nprint(tersor.Bound.relative(1e-3).value)"
    assert _run(script).strip() == "0.001"


def test_raw_round_trip_works_without_any_optional_package() -> None:
    script = BLOCK + (
        "import torch, tersor\n"
        "x = torch.arange(10.0)\n"
        "y = tersor.decompress(tersor.compress(x, codec='raw'))\n"
        "print(torch.equal(x, y))"
    )
    assert _run(script).strip() == "True"


def test_a_missing_kernel_package_is_named_with_the_way_out() -> None:
    script = BLOCK + (
        "import torch, tersor\n"
        "from tersor.errors import BackendUnavailableError\n"
        "try:\n"
        "    tersor.compress(torch.arange(10.0), codec='flat', bound=tersor.Bound.absolute(0.1))\n"
        "except BackendUnavailableError as error:\n"
        "    print(error)"
    )
    message = _run(script)
    assert "numba" in message
    assert "TERSOR_KERNELS=reference" in message


def test_import_touches_no_device_thread_environment_or_optional_package() -> None:
    seen = json.loads(_run(OBSERVE))
    assert not seen["cuda"]
    assert seen["threads"] == 0
    assert seen["env"] == []
    assert not set(OPTIONAL) & set(seen["modules"])


def test_import_is_quick_beyond_torch() -> None:
    # best of three: a busy machine slows a run, nothing speeds one up
    seconds = min(json.loads(_run(OBSERVE))["seconds"] for _ in range(3))
    assert seconds < MAX_SECONDS_BEYOND_TORCH
