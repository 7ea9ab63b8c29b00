"""``tersor bench``: the benchmarks; results are checked before anything is timed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer
from msgspec import structs
from rich.console import RenderableType
from rich.text import Text

from tersor.bench.core.row_file import RowFile
from tersor.bench.core.rows import ResultRow
from tersor.cli.failures import CHECK_FAILED
from tersor.cli.options import (
    JsonOption,
    ThreadsOption,
    check_device,
    names_of,
    numbers_of,
    option,
    typed_command,
    use_threads,
)
from tersor.cli.screen import Screen, binary_size
from tersor.codecs import registry
from tersor.errors import SpecError

if TYPE_CHECKING:
    from tersor.bench.core.outcome import SuiteOutcome
    from tersor.bench.kernels.config import KernelsConfig

app = typer.Typer(help="Measure codecs and peers; one table, one JSON row per measurement.")

OutputOption = Annotated[
    str | None,
    option("--output -o", "Append each result row to this .jsonl file.", "FILE"),
]
ResumeOption = Annotated[
    bool, option("--resume", "Go on with an --output file that has rows already.")
]
SmokeOption = Annotated[
    bool, option("--smoke", "Tiny inputs, one round: shows that everything runs.")
]


@app.command()
def kernels(
    context: typer.Context,
    device: Annotated[str, option("--device", "Where to measure: cpu or cuda.")] = "cpu",
    smoke: SmokeOption = False,
    inputs: Annotated[
        str | None,
        option("--inputs", "Inputs; default: all four kinds.", "NAME,..."),
    ] = None,
    codecs: Annotated[
        str | None,
        option("--codecs", "Our codecs; groups: fused operations; default: all.", "ID,..."),
    ] = None,
    peers: Annotated[
        str | None,
        option("--peers", "Other projects' codecs; none for no peer.", "NAME,..."),
    ] = None,
    bounds: Annotated[
        str | None,
        option("--bounds", "Relative bounds; default: each input's.", "R,..."),
    ] = None,
    threads: Annotated[str, option("--threads", "Thread counts for our codecs.", "N,...")] = "1,2",
    rounds: Annotated[
        int | None,
        option("--rounds", "Timed rounds; default: 7 on cpu, 10 on cuda.", "N"),
    ] = None,
    output: OutputOption = None,
    resume: ResumeOption = False,
    as_json: JsonOption = False,
) -> int:
    """Every codec against memcpy, lz4, zstd, SZ3, zfp and blosc2, end to end from float32.

    On cuda: against the device's copy and nvCOMP, with kernels started and memory taken.

    Exits with 1 when a codec broke its bound: its speed is then not reported.
    """
    from tersor.bench.kernels.suite import run_kernels

    screen = Screen(as_json=as_json)
    chosen = {"inputs": inputs, "codecs": codecs, "peers": peers}
    config = _kernels_config(device, smoke, chosen, bounds, threads, rounds)
    with (
        Rows(output, resume=resume, command=typed_command(context)) as rows,
        screen.compiling(),
        screen.steps("measuring") as show,
    ):
        outcome = run_kernels(
            config, done=rows.keys, on_row=rows.append, on_note=screen.say, on_group=show
        )
    return show_rows(screen, rows.all, outcome, judges=not smoke)


@app.command()
def memory(
    context: typer.Context,
    codec: Annotated[str, option("--codec", "A codec that takes a bound.", "ID")] = "flat",
    relative: Annotated[float, option("--rel", "Relative bound of the file.", "R")] = 0.01,
    folder: Annotated[
        str | None,
        option(
            "--folder",
            "Where to put three files for the time of the run, about 10 GiB; default: the "
            "system's temporary folder.",
            "PATH",
        ),
    ] = None,
    smoke: SmokeOption = False,
    threads: ThreadsOption = None,
    output: OutputOption = None,
    resume: ResumeOption = False,
    as_json: JsonOption = False,
) -> int:
    """Extra memory to compress and decompress a 4 GiB file (16 MiB with --smoke); Linux only."""
    from tersor.bench.core.outcome import SuiteOutcome
    from tersor.bench.kernels.memory import SMOKE_FILE_NBYTES, MemoryConfig, run_memory

    screen = Screen(as_json=as_json)
    use_threads(threads)
    if not registry.get(codec).takes_bound():
        raise SpecError(f"codec {codec!r} takes no bound; choose flat, huffman or rows")
    config = MemoryConfig(codec=codec, relative_bound=relative, directory=folder)
    if smoke:
        config = replace(config, nbytes=SMOKE_FILE_NBYTES)
    with Rows(output, resume=resume, command=typed_command(context)) as rows:
        row = run_memory(config, done=rows.keys)
        if row is not None:
            rows.append(row)
    return show_rows(screen, rows.all, SuiteOutcome(), judges=not smoke)


class Rows:
    """Collects result rows in memory and, if a path is given, appends each to a file.

    Every row added records the command that produced it.
    """

    def __init__(self, path: str | None, *, resume: bool, command: str) -> None:
        if resume and path is None:
            raise SpecError("--resume needs the --output file to go on with")
        self._command = command
        self._file = None if path is None else RowFile(path, resume=resume)
        self.all: list[ResultRow] = [] if self._file is None else self._file.rows
        # keys of existing rows, which need not be measured again
        self.keys = frozenset[str]() if self._file is None else self._file.keys
        self.added: list[ResultRow] = []

    def append(self, row: ResultRow) -> None:
        """Add a row; if there is a file, the row is on disk when this returns."""
        row = structs.replace(row, command=self._command)
        self.added.append(row)
        if self._file is None:
            self.all.append(row)
        else:
            self._file.append(row)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._file is not None:
            self._file.close()
            if isinstance(error, KeyboardInterrupt):
                saved = f"rows kept in {self._file.path}: {len(self.all)}"
                error.args = (f"{saved}; go on with --resume",)


def _kernels_config(
    device: str, smoke: bool, chosen: Mapping[str, str | None], bounds: str | None, threads: str,
    rounds: int | None,
) -> KernelsConfig:  # fmt: skip
    from tersor.bench.kernels.config import KernelsConfig

    check_device(device)
    asked: dict[str, Any] = {"threads": numbers_of(threads, "--threads", int)}
    for name, text in chosen.items():
        if text is not None:
            asked[name] = () if text == "none" else names_of(text)
    if bounds is not None:
        asked["bounds"] = numbers_of(bounds, "--bounds", float)
    config = KernelsConfig.for_device(device, **asked)
    if smoke:
        config = config.smoke()
    if rounds is not None:
        if rounds < 1:
            raise SpecError(f"--rounds must be at least 1, not {rounds}")
        config = replace(config, rounds=rounds)
    return config


def show_rows(
    screen: Screen,
    rows: list[ResultRow],
    outcome: SuiteOutcome,
    *,
    shown: Sequence[RenderableType] = (),
    summary: Mapping[str, Any] | None = None,
    judges: bool,
) -> int:
    """Show rows and goals as tables or as JSON; return the exit code, which fails if there are refusals.

    Args:
        screen: output of the command.
        rows: all rows.
        outcome: notes of the run, and refusals, which are results that broke a promise.
        shown: further renderables, ahead of the tables.
        summary: further JSON values.
        judges: evaluate goals. A smoke run does not, because it would miss most of them.
    """
    from tersor.bench.core.tables import goals_table
    from tersor.bench.sites import evaluate_goals, site_tables

    goals = evaluate_goals(rows) if judges else []
    values = {
        "rows": [row.to_config() for row in rows],
        "goals": [{**asdict(goal), "met": goal.met} for goal in goals],
        "notes": outcome.notes,
        "refusals": outcome.refusals,
        **(summary or {}),
    }
    tables = [*shown, *site_tables(rows)]
    tables += [
        Text(f"{row.codec} on a file of {binary_size(row.original_nbytes)}: {row.note}")
        for row in rows
        if row.suite == "memory"
    ]
    screen.result(values, *tables, *([goals_table(goals)] if judges else []))
    if not judges:
        screen.say("--smoke measures too little to judge the goals")
    return CHECK_FAILED if outcome.refusals else 0
