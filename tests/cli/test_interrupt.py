"""Ctrl-C before the command runs: torch takes seconds to import, and users are impatient."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from tests.arch.source_files import REPOSITORY
from tests.processes import children_of

# stands before every import of a process and holds up that of one module
SLOW = """
import os, sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["SLOW_MODULE"]:
            open(os.environ["SLOW_MARK"], "w").close()
            time.sleep(60)
if os.environ["SLOW_WHERE"] in " ".join(sys.orig_argv):
    sys.meta_path.insert(0, Slow())
"""
CHILDREN = """
import sys
from tersor.workloads.ranks import run_local_ranks
if __name__ == "__main__":
    run_local_ranks(print, 1, {}, print)
"""


def installed_script(folder: Path) -> Path:
    """Write the script that an installation makes of the entry in pyproject.toml."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    module, function = project["scripts"]["tersor"].split(":")
    script = folder / "tersor"
    script.write_text(f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n")
    return script


def start(words: list[str], folder: Path, module: str, where: str = "") -> subprocess.Popen[str]:
    """Start Python with slow imports of a module; return when the process is at one."""
    (folder / "first").mkdir()
    (folder / "first/sitecustomize.py").write_text(SLOW)
    mark = folder / "mark"
    path = os.pathsep.join([str(folder / "first"), str(REPOSITORY / "src")])
    slow = {"SLOW_MODULE": module, "SLOW_MARK": str(mark), "SLOW_WHERE": where}
    # a job in the background of a shell ignores the signal, and so would its children
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path} | slow,
    )
    signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 120
    while not mark.exists() and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    assert mark.exists(), process.communicate()
    return process


@pytest.mark.parametrize("module", ["torch", "typer"])
@pytest.mark.parametrize("how", ["module", "script"])
def test_ctrl_c_during_imports_is_one_sentence(tmp_path, how, module) -> None:
    words = ["-m", "tersor"] if how == "module" else [str(installed_script(tmp_path))]
    process = start([*words, "codecs"], tmp_path, module)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == (
        "",
        "tersor: interrupted; nothing half-written is left behind\n",
    )
    assert process.returncode == 130


def test_a_rank_that_is_interrupted_during_imports_says_nothing(tmp_path) -> None:
    (tmp_path / "tersor").write_text(CHILDREN)
    process = start([str(tmp_path / "tersor")], tmp_path, "torch", "--multiprocessing-fork")
    # the other child keeps track of what processes share
    (child,) = [
        pid
        for pid in children_of(process.pid)
        if "--multiprocessing-fork" in Path(f"/proc/{pid}/cmdline").read_text()
    ]
    os.kill(child, signal.SIGINT)
    words = process.communicate(timeout=60)[1]
    assert "rank 0 failed" in words
    assert "KeyboardInterrupt" not in words


def test_programs_that_import_tersor_keep_their_own_interrupts(tmp_path) -> None:
    (tmp_path / "own.py").write_text("import tersor")
    process = start([str(tmp_path / "own.py")], tmp_path, "torch")
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
