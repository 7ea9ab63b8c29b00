"""``tersor bench programs``: runs other projects' benchmark programs and parses their output."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType

from tersor.cli.bench import OutputOption, ResumeOption, Rows, SmokeOption
from tersor.cli.failures import CHECK_FAILED
from tersor.cli.options import JsonOption, check_device, names_of, numbers_of, option, typed_command
from tersor.cli.screen import Screen

if TYPE_CHECKING:
    from tersor.bench.kernels.programs import ProgramsOutcome


def programs(
    context: typer.Context,
    device: Annotated[
        str, option("--device", "Device of the programs to run: cpu for sz3, cuda for the others.")
    ] = "cpu",
    names: Annotated[
        str | None,
        option("--programs", "Programs to run; default: all on PATH.", "NAME,..."),
    ] = None,
    inputs: Annotated[
        str | None,
        option("--inputs", "Inputs; default: all four kinds.", "NAME,..."),
    ] = None,
    bounds: Annotated[
        str | None,
        option("--bounds", "Relative bounds; default: each input's.", "R,..."),
    ] = None,
    rounds: Annotated[int, option("--rounds", "Runs of each program.", "N")] = 3,
    timeout: Annotated[float, option("--timeout", "Most seconds for one run.", "S")] = 300.0,
    smoke: SmokeOption = False,
    output: OutputOption = None,
    resume: ResumeOption = False,
    as_json: JsonOption = False,
) -> int:
    """Run nvCOMP's benchmark_*_chunked, gpulz, cuSZ's bin_hf and sz3, where they are on PATH.

    They get the inputs of bench kernels: sz3 as floats with a bound, the others as quantized codes. The
    times are theirs; rows can go to the same file as those of bench kernels. A program that is missing
    or fails is one line.

    Exits with 1 when every run failed, or when all programs named by --programs are missing.
    """
    from tersor.bench.kernels.programs import ProgramsConfig, run_programs
    from tersor.bench.kernels.tables import device_table, kernels_table

    check_device(device)
    screen = Screen(as_json=as_json)
    config = ProgramsConfig(
        device=device,
        programs=() if names is None else names_of(names),
        inputs=() if inputs is None else names_of(inputs),
        bounds=() if bounds is None else numbers_of(bounds, "--bounds", float),
        rounds=rounds,
        timeout_s=timeout,
    )
    config = config.smoke() if smoke else config
    with (
        Rows(output, resume=resume, command=typed_command(context)) as rows,
        screen.compiling(),
        screen.steps("measuring") as show,
    ):
        outcome = run_programs(
            config, done=rows.keys, on_row=rows.append, on_note=screen.say, on_group=show
        )
    table = device_table if device == "cuda" else kernels_table
    shown: list[RenderableType] = [table(rows.added)] if rows.added else []
    values = {"rows": [row.to_config() for row in rows.added], "notes": outcome.notes}
    screen.result(values, *shown)
    return _exit_code(screen, outcome, is_named=bool(config.programs))


def _exit_code(screen: Screen, outcome: ProgramsOutcome, *, is_named: bool) -> int:
    """Return the exit code; if nothing was measured, say why.

    Missing programs are a failure only if they were named.
    """
    if not outcome.is_empty:
        return 0
    if outcome.num_on_path:
        screen.say("nothing was measured: every run failed, for the reasons above")
        return CHECK_FAILED
    way_out = "; put one there, or leave out --programs" if is_named else ""
    screen.say(f"nothing was measured: none of these programs is on PATH{way_out}")
    return CHECK_FAILED if is_named else 0
