"""What a measurement ran on: library versions, processor and commit, but never the host's name."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import torch

_PACKAGES: Final = (
    "torch", "numba", "llvmlite", "numpy", "triton", "lz4", "zstandard", "blosc2", "pysz", "zfpy",
    "pcodec", "fbgemm-gpu-cpu", "nvidia-nvcomp-cu12", "nvidia-nvcomp-cu13",
)  # fmt: skip


def package_version(distribution: str) -> str | None:
    """Return the installed version of a distribution, or None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@cache
def _versions() -> dict[str, str]:
    found = {name: package_version(name) for name in ("tersor", *_PACKAGES)}
    known = {"python": platform.python_version(), "os": platform.system(), **found}
    return {name: v for name, v in {**known, "cuda": torch.version.cuda}.items() if v}


def versions() -> dict[str, str]:
    """Return the versions of Python, the OS name, and every installed package that matters."""
    return dict(_versions())


def machine(device: torch.device) -> dict[str, Any]:
    """Describe the processor, its cores and memory, and the GPU if ``device`` is one."""
    facts: dict[str, Any] = {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gib": _memory_gib(),
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["gpu_memory_gib"] = round(
            torch.cuda.get_device_properties(device).total_memory / 2**30, 1
        )
    return facts


@cache
def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def _memory_gib() -> float | None:
    if not hasattr(os, "sysconf"):
        return None
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


@cache
def git_commit() -> str:
    """Return the commit of the source tree this module runs from, or ``"unknown"``.

    A tree with uncommitted changes to tracked files gets ``-dirty`` appended.
    """
    here = Path(__file__).resolve()
    # an installed copy may be inside another project's repository, so check that git tracks this file
    commands = (
        ["git", "ls-files", "--error-unmatch", here.name],
        ["git", "rev-parse", "--short=12", "HEAD"],
        ["git", "status", "--porcelain", "--untracked-files=no"],
    )
    answers = []
    for command in commands:
        try:
            done = subprocess.run(  # noqa: S603 (fixed commands)
                command, cwd=here.parent, capture_output=True, text=True, timeout=30, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return "unknown"
        answers.append(done.stdout.strip())
    _, commit, changes = answers
    return f"{commit}-dirty" if changes else commit


def origin(device: torch.device) -> dict[str, Any]:
    """Return the provenance fields of a result row: versions, machine and commit."""
    return {"versions": versions(), "machine": machine(device), "git_commit": git_commit()}
