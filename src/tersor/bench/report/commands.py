"""The commands that make results again, as nearly as their rows tell."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tersor.bench.report.origin import run_parts
from tersor.bench.report.runs import AccuracyRun, PlanRun, Run, TrainingRun
from tersor.bench.rows import ResultRow

_COPIES: Final = ("memcpy", "copy", "copy-ceiling")


def remake(run: Run) -> str:
    """Return the commands that make a run again; empty where its rows do not tell."""
    if isinstance(run, AccuracyRun):
        return _accuracy_command(run)
    if isinstance(run, TrainingRun):
        return "\n".join(
            dict.fromkeys(str(p["command"]) for p in run_parts(run) if p.get("command"))
        )
    if isinstance(run, PlanRun):
        return ""
    commands = []
    for suite, device in dict.fromkeys((row.suite, row.device) for row in run.rows):
        rows = [row for row in run.rows if (row.suite, row.device) == (suite, device)]
        make = _COMMANDS.get(suite)
        if suite == "embeddings" and all(row.exchange is not None for row in rows):
            make = _exchange_command
        if make is not None:
            commands.append([*make(rows), "--output", run.path])
    # a second command would refuse a file that the first one filled
    return "\n".join(
        shlex.join([*command, *(["--resume"] if k else [])]) for k, command in enumerate(commands)
    )


def _list(values: Iterable[Any]) -> str:
    return ",".join(dict.fromkeys(f"{v:g}" if isinstance(v, float) else str(v) for v in values))


def _kernels_command(rows: Sequence[ResultRow]) -> list[str]:
    # plain copies are measured with any input, by themselves
    inputs = _list(row.input for row in rows if row.input != "copy")
    command = ["tersor", "bench", "kernels", "--device", rows[0].device, "--inputs", inputs]
    if rows[0].device == "cpu":
        command += ["--threads", _list(sorted({row.threads for row in rows}))]
    bounds = {
        name: {r.relative_bound for r in rows if r.input == name and r.relative_bound is not None}
        for name in dict.fromkeys(row.input for row in rows)
    }
    if not _are_usual(bounds):
        command += ["--bounds", _list(sorted(set().union(*bounds.values())))]
    return [*command, *_chosen(rows)]


def _chosen(rows: Sequence[ResultRow]) -> list[str]:
    """Return the options that name codecs and peers, where not all were measured."""
    from tersor.bench.suites.plan import KernelsConfig

    usual = KernelsConfig.for_device(rows[0].device)
    # those of codes alone come with the codec they are a part of
    ours = [row.codec for row in rows if not row.peer and not row.codec.endswith("-codes")]
    are_all = set(usual.codecs) <= set(ours)
    has_peers = any(row.peer and row.codec not in _COPIES for row in rows)
    codecs = [] if are_all or not ours else ["--codecs", _list(ours)]
    return [*codecs, *([] if has_peers else ["--peers", "none"])]


def _are_usual(bounds: Mapping[str, set[float]]) -> bool:
    """Whether each input has the bounds that the benchmark takes unless told otherwise."""
    from tersor.bench.inputs import bounds_of
    from tersor.errors import SpecError

    try:
        return all(set(bounds_of(name)) == found for name, found in bounds.items() if found)
    except SpecError:
        return False


def _memory_command(rows: Sequence[ResultRow]) -> list[str]:
    row = rows[0]
    bound = [] if row.relative_bound is None else ["--rel", f"{row.relative_bound:g}"]
    threads = ["--threads", str(row.threads)]
    return ["tersor", "bench", "memory", "--codec", row.codec, *bound, *threads]


def _lookups_command(rows: Sequence[ResultRow]) -> list[str]:
    """Return a command in which DIR stands for the folder of the dumps, which rows do not know."""
    facts = [row.lookups for row in rows if row.lookups is not None]
    is_made_up = rows[0].input.startswith("synthetic")
    command = ["tersor", "bench", "embeddings", "--synthetic" if is_made_up else "DIR"]
    command += ["--device", rows[0].device, "--ranks", _list(one.num_ranks for one in facts)]
    for name in ("tight", "loose"):
        tables = sorted({one.table for one in facts if one.table_class == name})
        command += [f"--{name}-tables", _list(tables)] if tables else []
    return [*command, *(["--repeat", str(rows[0].repeat)] if rows[0].repeat > 1 else [])]


def _exchange_command(rows: Sequence[ResultRow]) -> list[str]:
    times = [row.exchange for row in rows if row.exchange is not None]
    links = _list(one.link for one in times if one.link is not None)
    command = ["tersor", "bench", "embeddings", "--ranks", _list(one.num_ranks for one in times)]
    command += ["--bandwidth", links] if links else []
    command += ["--batch", _list(one.batch for one in times)]
    inputs = dict.fromkeys(row.input for row in rows)
    presets = [name.removeprefix("dlrm-") for name in inputs if name.startswith("dlrm-")]
    command += ["--preset", presets[0]] if len(presets) == 1 else []
    return [*command, "--exchanges", _list(row.codec for row in rows)]


def _accuracy_command(run: AccuracyRun) -> str:
    first = run.pairs[0]
    config, source = first["config"], str(first["source"])
    is_made_up = source.startswith("synthetic")
    command = ["tersor", "bench", "accuracy", "--data", "synthetic" if is_made_up else source]
    command += ["--seeds", str(1 + max(pair["seed"] for pair in run.pairs))]
    for option, name in (
        ("--steps", "steps"), ("--batch", "batch"), ("--lr", "learning_rate"),
        ("--codec", "codec"), ("--backward", "backward"),
    ):  # fmt: skip
        if name in config:
            command += [option, str(config[name])]
    shape = config.get("shape", {})
    rows = shape.get("num_rows") if isinstance(shape, Mapping) else None
    if is_made_up and isinstance(rows, list) and rows:
        command += ["--max-rows", str(max(rows))]
    command += ["--ranks", str(first["ranks"]), "--output", run.path]
    return shlex.join(command)


_COMMANDS: Final = {
    "kernels": _kernels_command,
    "memory": _memory_command,
    "lookups": _lookups_command,
}
