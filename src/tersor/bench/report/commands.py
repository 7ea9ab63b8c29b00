"""The commands that make results again: as they were typed, or as nearly as the rows tell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from tersor.bench.core.ceiling import CEILING
from tersor.bench.core.rows import ResultRow
from tersor.bench.embeddings.lookups.inputs import SYNTHETIC
from tersor.bench.peers import COPIES
from tersor.bench.peers.executables import EXECUTABLES
from tersor.bench.report.origin import run_parts
from tersor.bench.report.runs import AccuracyRun, PlanRun, Run, TrainingRun

_COPIES: Final = COPIES | {CEILING}
_MADE_UP: Final = re.compile(rf"{SYNTHETIC}(?:-dim(\d+))?-[0-9a-f]+")
"""What made-up look-ups are called: a digest follows, as it follows the name of a folder."""
_MODEL: Final = re.compile(r"dlrm-(\w+)(?:-dim(\d+))?")

_Make = Callable[[Sequence[ResultRow]], list[str]]


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
    typed = dict.fromkeys(row.command for row in run.rows if row.command)
    guessed = _guessed([r for r in run.rows if not r.command], run.path, is_first=not typed)
    return "\n".join(filter(None, [*typed, guessed]))


def _guessed(rows: Sequence[ResultRow], path: str, *, is_first: bool) -> str:
    """Return commands for rows that do not say how they were measured.

    ``is_first`` says that no other command filled the file before them.
    """
    groups: dict[tuple[_Make, str, int | None], list[ResultRow]] = {}
    for row in rows:
        make = _maker(row)
        if make is not None:
            groups.setdefault((make, row.device, _num_ranks(row)), []).append(row)
    commands = [[*make(rows), "--output", path] for (make, _, _), rows in groups.items()]
    # a second command would refuse a file that the first one filled
    return "\n".join(
        shlex.join([*command, *([] if is_first and k == 0 else ["--resume"])])
        for k, command in enumerate(commands)
    )


def _maker(row: ResultRow) -> _Make | None:
    """Return what makes the command of a row's suite, if there is one."""
    if row.suite == "kernels":
        # rows of programs carry the suite's name, too
        is_program = row.peer and row.codec in EXECUTABLES
        return _programs_command if is_program else _kernels_command
    if row.suite == "embeddings" and row.exchange is not None:
        return _exchange_command
    if row.suite == "lookups" and row.lookups is not None:
        return _lookups_command
    return _memory_command if row.suite == "memory" else None


def _num_ranks(row: ResultRow) -> int | None:
    """Return the ranks of a row that knows them: one command takes only one number."""
    facts = row.exchange or row.lookups
    return None if facts is None else facts.num_ranks


def _list(values: Iterable[Any]) -> str:
    return ",".join(dict.fromkeys(f"{v:g}" if isinstance(v, float) else str(v) for v in values))


def _kernels_command(rows: Sequence[ResultRow]) -> list[str]:
    # plain copies are measured with any input, by themselves
    inputs = _list(row.input for row in rows if row.input != "copy")
    command = ["tersor", "bench", "kernels", "--device", rows[0].device, "--inputs", inputs]
    if rows[0].device == "cpu":
        command += ["--threads", _list(sorted({row.threads for row in rows}))]
    return [*command, *_bounds(rows), *_chosen(rows)]


def _programs_command(rows: Sequence[ResultRow]) -> list[str]:
    names, inputs = (_list(getattr(row, field) for row in rows) for field in ("codec", "input"))
    command = ["tersor", "bench", "programs", "--device", rows[0].device, "--programs", names]
    return [*command, "--inputs", inputs, *_bounds(rows)]


def _bounds(rows: Sequence[ResultRow]) -> list[str]:
    """Return the option that names the bounds, where they are not the usual ones."""
    bounds = {
        name: {r.relative_bound for r in rows if r.input == name and r.relative_bound is not None}
        for name in dict.fromkeys(row.input for row in rows)
    }
    if _are_usual(bounds, rows[0].device):
        return []
    return ["--bounds", _list(sorted(set().union(*bounds.values())))]


def _chosen(rows: Sequence[ResultRow]) -> list[str]:
    """Return the options that name codecs and peers, where not all were measured."""
    from tersor.bench.kernels.config import KernelsConfig

    usual = KernelsConfig.for_device(rows[0].device)
    # those of codes alone come with the codec they are a part of
    ours = [row.codec for row in rows if not row.peer and not row.codec.endswith("-codes")]
    are_all = set(usual.codecs) <= set(ours)
    has_peers = any(row.peer and row.codec not in _COPIES for row in rows)
    codecs = [] if are_all or not ours else ["--codecs", _list(ours)]
    return [*codecs, *([] if has_peers else ["--peers", "none"])]


def _are_usual(bounds: Mapping[str, set[float]], device: str) -> bool:
    """Whether each input has the bounds that the benchmark takes unless told otherwise."""
    from tersor.bench.core.inputs import bounds_of
    from tersor.bench.kernels.device_inputs import device_bounds_of
    from tersor.errors import SpecError

    usual = device_bounds_of if device == "cuda" else bounds_of
    try:
        return all(set(usual(name)) == found for name, found in bounds.items() if found)
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
    made_up = _MADE_UP.fullmatch(rows[0].input)
    command = ["tersor", "bench", "embeddings", "DIR" if made_up is None else "--synthetic"]
    command += ["--dim", made_up[1]] if made_up is not None and made_up[1] else []
    command += ["--device", rows[0].device, "--ranks", str(facts[0].num_ranks)]
    for name in ("tight", "loose"):
        found = {one.table for one in facts if one.table_class == name}
        tables = sorted(table for table in found if table is not None)
        command += [f"--{name}-tables", _list(tables)] if tables else []
    return [*command, *(["--repeat", str(rows[0].repeat)] if rows[0].repeat > 1 else [])]


def _exchange_command(rows: Sequence[ResultRow]) -> list[str]:
    times = [row.exchange for row in rows if row.exchange is not None]
    links = _list(one.link for one in times if one.link is not None)
    command = ["tersor", "bench", "embeddings", "--ranks", str(times[0].num_ranks)]
    command += ["--bandwidth", links] if links else []
    command += ["--batch", _list(one.batch for one in times)]
    inputs = dict.fromkeys(row.input for row in rows)
    models = [found for name in inputs if (found := _MODEL.fullmatch(name)) is not None]
    if len(models) == 1:
        preset, dim = models[0].groups()
        command += ["--preset", preset, *(["--dim", dim] if dim else [])]
    return [*command, "--exchanges", _list(row.codec for row in rows)]


def _accuracy_command(run: AccuracyRun) -> str:
    first = run.pairs[0]
    config, source = first["config"], str(first["source"])
    is_made_up = source.startswith("synthetic clicks, seed ")
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
