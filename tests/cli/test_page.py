"""docs/cli.md is true: it names every verb and option, and its examples run."""

from __future__ import annotations

import re
import shlex
from typing import Any

import numpy as np
import torch

from tersor.cli.app import command
from tests.arch.source_files import REPOSITORY

PAGE = (REPOSITORY / "docs" / "cli.md").read_text(encoding="utf-8")


def test_every_verb_and_option_is_on_the_page() -> None:
    def missing(tree: Any, path: str) -> list[str]:
        options = [p.opts[0] for p in tree.params if p.param_type_name == "option"]
        found = [f"{path} {option}" for option in options if f"`{option}" not in PAGE]
        for name, sub in getattr(tree, "commands", {}).items():
            found += missing(sub, f"{path} {name}")
        return found if f"{path}" in PAGE else [*found, path]

    assert missing(command(), "tersor") == []


def test_the_examples_run(tersor, noise) -> None:
    np.save("field.npy", noise)
    (tersor.folder / "dump.f32").write_bytes(noise.tobytes())
    torch.save({"layer": {"weight": torch.from_numpy(noise)}}, "model.pt")
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    lines = [line.split("  #")[0] for block in blocks for line in block.splitlines()]
    # a pipe needs a shell; tests/cli/test_process.py has one
    commands = [
        shlex.split(line) for line in lines if line.startswith("tersor ") and "|" not in line
    ]
    assert len(commands) >= 8
    for _, *arguments in commands:
        if arguments[0] in ("bench", "quickstart"):
            continue
        if "cuda" not in arguments or torch.cuda.is_available():
            tersor.ok(*arguments)
