"""``tersor bench accuracy gpt``."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from tersor.cli.bench import OutputOption, ResumeOption, Rows, SmokeOption, show_rows
from tersor.cli.options import JsonOption, check_device, names_of, option, typed_command
from tersor.cli.screen import Screen
from tersor.cli.train import gpt_options as own
from tersor.cli.train import options as every
from tersor.cli.train.gpt import gpt_config
from tersor.errors import SpecError

_Schemes = Annotated[
    str | None,
    option("--schemes", "How ranks exchange; default: those of docs/shards.md.", "NAME,..."),
]
_Seeds = Annotated[int, option("--seeds", "Trainings of each scheme, seeds 0 to N - 1.", "N")]
_Steps = Annotated[int, option("--steps", "Steps of each training.", "N")]
_Ranks = Annotated[int, option("--ranks", "Number of ranks that train together.", "N")]
_Transport = Annotated[
    str,
    option("--transport", "gloo: a process per rank; memory: all ranks in one process."),
]
_PerNode = Annotated[int, option("--ranks-per-node", "Ranks of a node.", "N")]
_Jobs = Annotated[int, option("--jobs", "Trainings that run at the same time.", "N")]
_Evals = Annotated[int, option("--evals", "Evaluations of each training.", "N")]


def gpt(
    context: typer.Context,
    data: own.Data = "synthetic",
    validation: own.Validation = None,
    tokenizer: own.Tokenizer = "bytes",
    vocabulary: own.Vocabulary = 8192,
    cache: own.Cache = None,
    preset: own.Preset = "2M",
    length: own.Context = None,
    schemes: _Schemes = None,
    seeds: _Seeds = 3,
    steps: _Steps = 300,
    batch: every.Batch = None,
    rate: every.Rate = None,
    dtype: every.Dtype = "fp32",
    ranks: _Ranks = 4,
    ranks_per_node: _PerNode = 2,
    transport: _Transport = "gloo",
    device: every.Device = "cpu",
    jobs: _Jobs = 1,
    evals: _Evals = 10,
    smoke: SmokeOption = False,
    output: OutputOption = None,
    resume: ResumeOption = False,
    as_json: JsonOption = False,
) -> int:
    """Train a GPT with exact and with compressed exchanges, and judge the loss seed by seed.

    Trainings of a seed begin with the same weights and take the same batches. A row per training.
    Exits with 1 when a compressed training other than direct diverges.
    """
    from tersor.bench.shards.accuracy import AccuracyConfig, run_accuracy
    from tersor.workloads.data.text_opening import open_text

    screen = Screen(as_json=as_json)
    processes = _processes(device, transport, ranks)
    known = {"dtype": dtype, "ranks": ranks // processes, "ranks_per_node": ranks_per_node}
    training = gpt_config(preset, length, steps, batch, rate, None, known)
    source = open_text(
        data, validation=validation, tokenizer=tokenizer, vocabulary=vocabulary, cache=cache
    )
    config = AccuracyConfig(
        training=replace(training, shape=replace(training.shape, vocabulary=source.vocabulary)),
        model=f"gpt-{preset}",
        schemes=_schemes(schemes, smoke=smoke),
        seeds=tuple(range(seeds)),
        processes=processes,
        device=device,
        jobs=jobs,
        num_evals=evals,
    )
    with (
        Rows(output, resume=resume, command=typed_command(context)) as rows,
        screen.steps("training") as show,
    ):
        outcome = run_accuracy(
            config.smoke() if smoke else config,
            source, done=rows.keys, on_row=rows.append, on_note=screen.say, progress=show,
        )  # fmt: skip
    return show_rows(screen, rows.all, outcome, judges=not smoke)


def _schemes(named: str | None, *, smoke: bool) -> tuple[str, ...]:
    """Return the schemes to train besides exact: those named, or a default selection."""
    from tersor.bench.shards.accuracy import DEFAULT_SCHEMES

    if named is not None:
        return names_of(named)
    return ("both",) if smoke else DEFAULT_SCHEMES


def _processes(device: str, transport: str, ranks: int) -> int:
    """Return the number of processes that train together; validate device, transport and ranks."""
    check_device(device)
    if transport not in ("gloo", "memory"):
        raise SpecError(f"--transport must be gloo or memory, not {transport!r}")
    if transport == "gloo" and device != "cpu":
        raise SpecError("gloo ranks train on the cpu; give --transport memory for a GPU")
    if ranks < 2:
        raise SpecError(f"--ranks must be at least 2, not {ranks}: one rank exchanges nothing")
    return ranks if transport == "gloo" else 1
