"""The examples of docs/shards.md run on two ranks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.arch.source_files import REPOSITORY

BEFORE = 'import torch.distributed as dist\ndist.init_process_group("gloo")\n'
AFTER = "\nimport torch.distributed as dist\ndist.barrier()\ndist.destroy_process_group()\n"


def _examples() -> list[str]:
    page = (REPOSITORY / "docs" / "shards.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def _run(script: str, folder: Path) -> str:
    path = folder / "train.py"
    path.write_text(script)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", path],
        check=False, cwd=folder, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_script_of_the_page_runs(tmp_path) -> None:
    whole = [one for one in _examples() if "init_process_group" in one]
    assert len(whole) == 1
    assert "ratio" in _run(whole[0], tmp_path)


def test_the_other_examples_run_in_a_process_group(tmp_path) -> None:
    parts = [one for one in _examples() if "init_process_group" not in one]
    assert len(parts) == 4
    # each must bring its own imports
    lines = [f"exec(compile({one!r}, 'docs/shards.md', 'exec'), {{}})" for one in parts]
    _run(BEFORE + "\n".join(lines) + AFTER, tmp_path)
