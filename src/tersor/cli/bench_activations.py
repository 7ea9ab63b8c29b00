"""``tersor bench activations``: training steps that differ in how they hold tensors for backward."""

from __future__ import annotations

from typing import Annotated

import typer

from tersor.cli.bench import OutputOption, ResumeOption, Rows, SmokeOption, show_rows
from tersor.cli.options import (
    JsonOption,
    ThreadsOption,
    check_device,
    names_of,
    option,
    typed_command,
    use_threads,
)
from tersor.cli.screen import Screen

_Models = Annotated[
    str | None,
    option(
        "--models",
        "alexnet, resnet34, resnet34-224, gcn, gpt-2M to gpt-350M; default: several.",
        "NAME,...",
    ),
]
_Contenders = Annotated[
    str | None,
    option("--contenders", "What to compare, such as rms-0.5,group4; default: all.", "NAME,..."),
]
_Batch = Annotated[
    int | None, option("--batch", "Samples of a step; default: each model's own.", "N")
]
_Dtype = Annotated[str, option("--dtype", "Dtype that models compute in: fp32 or bf16.")]
_Warm = Annotated[
    int,
    option("--warm-steps", "Steps that models are trained for before anything is measured.", "N"),
]
_Device = Annotated[str, option("--device", "cpu or cuda.")]
_Rounds = Annotated[int, option("--rounds", "Timed rounds.", "N")]


def activations(
    context: typer.Context,
    models: _Models = None,
    contenders: _Contenders = None,
    batch: _Batch = None,
    dtype: _Dtype = "fp32",
    warm_steps: _Warm = 20,
    device: _Device = "cpu",
    threads: ThreadsOption = None,
    rounds: _Rounds = 7,
    smoke: SmokeOption = False,
    output: OutputOption = None,
    resume: ResumeOption = False,
    as_json: JsonOption = False,
) -> int:
    """Bytes held for backward, peak memory, time and gradients of training steps.

    Ours compared with exact steps, checkpointing, offloading, torch.compile with a memory budget, and inductor's
    8-bit floats. On cuda the allocator counts memory; on cpu each contender runs in its own process.

    Exits with 1 when a lossless codec changes a gradient: nothing of that model is then reported.
    """
    from tersor.bench.activations.cases import DEFAULT_MODELS, CasePlan
    from tersor.bench.activations.contenders import DEFAULT
    from tersor.bench.activations.suite import ActivationsConfig, run_activations

    screen = Screen(as_json=as_json)
    check_device(device)
    use_threads(threads)
    usual = DEFAULT_MODELS["smoke" if smoke else device.partition(":")[0]]
    cases = tuple(
        CasePlan(
            model=name, batch=batch or 0, dtype=dtype, warm_steps=warm_steps, device=device,
            threads=threads or 0,
        )
        for name in (usual if models is None else names_of(models))
    )  # fmt: skip
    config = ActivationsConfig(
        cases=cases,
        contenders=DEFAULT if contenders is None else names_of(contenders),
        rounds=rounds,
    )
    with (
        Rows(output, resume=resume, command=typed_command(context)) as rows,
        screen.compiling(),
        screen.steps("measuring") as show,
    ):
        outcome = run_activations(
            config.smoke() if smoke else config,
            done=rows.keys, on_row=rows.append, on_note=screen.say, on_case=show,
        )  # fmt: skip
    return show_rows(screen, rows.all, outcome, judges=not smoke)
