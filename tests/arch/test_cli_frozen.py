"""The verbs and options are a promise to scripts: a change is made on purpose and seen in a diff."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tersor.cli.app import command
from tests.arch.source_files import REPOSITORY

GOLDEN = REPOSITORY / "tests" / "arch" / "cli.json"


def described(tree: Any, path: str = "tersor") -> dict[str, Any]:
    """Return every command and every parameter, by the words that lead to it."""
    found: dict[str, Any] = {path: "group" if hasattr(tree, "commands") else "command"}
    for parameter in tree.params:
        default = parameter.default
        names = sorted([*parameter.opts, *parameter.secondary_opts])
        found[" ".join([path, *names])] = {
            "kind": parameter.param_type_name,
            "required": parameter.required,
            "multiple": getattr(parameter, "multiple", False),
            "flag": bool(getattr(parameter, "is_flag", False)),
            "default": default if isinstance(default, bool | int | float | str) else None,
        }
    for name, sub in sorted(getattr(tree, "commands", {}).items()):
        found |= described(sub, f"{path} {name}")
    return found


def in_lines(found: dict[str, Any]) -> str:
    """Return the description as JSON with one line per command and parameter."""
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in found.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def test_verbs_and_options_are_the_committed_ones(write_golden) -> None:
    found = in_lines(described(command()))
    if write_golden:
        GOLDEN.write_text(found, encoding="utf-8")
    assert GOLDEN.exists(), "no committed options; write them with pytest --write-golden"
    assert found == GOLDEN.read_text(encoding="utf-8"), (
        "the command line changed; if that is meant, write it anew with pytest --write-golden, "
        "and say so in docs/cli.md and CHANGELOG.md"
    )


def _rename(tree: Any) -> None:
    tree.commands["compress"].params[-1].opts = ["--renamed"]


def _remove(tree: Any) -> None:
    tree.commands["compress"].params.pop()


def _require(tree: Any) -> None:
    tree.commands["bench"].commands["accuracy"].commands["dlrm"].params[0].required = True


def _repeat(tree: Any) -> None:
    option = tree.commands["compress"].params[-1]
    option.multiple = not option.multiple


def _default(tree: Any) -> None:
    tree.commands["bench"].commands["accuracy"].commands["dlrm"].params[0].default = "other"


def _verb(tree: Any) -> None:
    tree.commands["pack"] = tree.commands.pop("compress")


@pytest.mark.parametrize("change", [_rename, _remove, _require, _repeat, _default, _verb])
def test_any_change_is_seen(change) -> None:
    tree = command()
    before = in_lines(described(tree))
    change(tree)
    assert in_lines(described(tree)) != before


def test_every_option_has_a_line_of_its_own() -> None:
    lines = GOLDEN.read_text(encoding="utf-8").splitlines()
    assert lines[0] + lines[-1] == "{}"
    parsed = [json.loads("{" + line.rstrip(",") + "}") for line in lines[1:-1]]
    assert {name: value for entry in parsed for name, value in entry.items()} == json.loads(
        GOLDEN.read_text(encoding="utf-8")
    )
    assert all(len(entry) == 1 for entry in parsed)


def test_every_option_has_help() -> None:
    def silent(tree: Any, path: str) -> list[str]:
        found = [f"{path} {p.name}" for p in tree.params if not getattr(p, "help", None)]
        for name, sub in getattr(tree, "commands", {}).items():
            found += silent(sub, f"{path} {name}")
        return found if tree.help else [*found, path]

    assert silent(command(), "tersor") == []
