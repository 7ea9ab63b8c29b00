"""The verbs and options are a promise to scripts: a change is made on purpose and seen in a diff."""

from __future__ import annotations

import json
from typing import Any

from tersor.cli.app import command
from tests.arch.source_files import REPOSITORY

GOLDEN = REPOSITORY / "tests" / "arch" / "cli.json"


def described(tree: Any) -> dict[str, Any]:
    """Return all parameters of a command, and its subcommands."""
    parameters = {}
    for parameter in tree.params:
        name = " ".join(sorted([*parameter.opts, *parameter.secondary_opts]))
        default = (
            parameter.default if isinstance(parameter.default, bool | int | float | str) else None
        )
        parameters[name] = {
            "kind": parameter.param_type_name,
            "required": parameter.required,
            "multiple": parameter.multiple if hasattr(parameter, "multiple") else False,
            "flag": bool(getattr(parameter, "is_flag", False)),
            "default": default,
        }
    described_tree: dict[str, Any] = {"parameters": parameters}
    if hasattr(tree, "commands"):
        described_tree["commands"] = {
            name: described(sub) for name, sub in sorted(tree.commands.items())
        }
    return described_tree


def test_verbs_and_options_are_the_committed_ones(write_golden) -> None:
    found = described(command())
    if write_golden:
        GOLDEN.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    assert GOLDEN.exists(), "no committed options; write them with pytest --write-golden"
    assert found == json.loads(GOLDEN.read_text(encoding="utf-8")), (
        "the command line changed; if that is meant, write it anew with pytest --write-golden, "
        "and say so in docs/cli.md and CHANGELOG.md"
    )


def test_a_changed_option_is_seen() -> None:
    tree = command()
    before = described(tree)
    tree.commands["compress"].params[-1].opts = ["--renamed"]
    assert described(tree) != before


def test_every_option_has_help() -> None:
    def silent(tree: Any, path: str) -> list[str]:
        found = [f"{path} {p.name}" for p in tree.params if not getattr(p, "help", None)]
        for name, sub in getattr(tree, "commands", {}).items():
            found += silent(sub, f"{path} {name}")
        return found if tree.help else [*found, path]

    assert silent(command(), "tersor") == []
