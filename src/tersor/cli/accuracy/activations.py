"""``tersor bench accuracy activations``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tersor.cli.bench import OutputOption, ResumeOption, Rows, SmokeOption, show_rows
from tersor.cli.options import JsonOption, check_device, names_of, option, typed_command
from tersor.cli.screen import Screen
from tersor.cli.train import options as every
from tersor.errors import SpecError

if TYPE_CHECKING:
    from tersor.bench.activations.recipes import Recipe

_Model = Annotated[str, typer.Argument(help="alexnet, resnet34, gcn, or gpt-2M to gpt-350M.")]
_Data = Annotated[
    str, option("--data", "synthetic, or what tersor train takes for this model.", "NAME")
]
_Settings = Annotated[
    str | None,
    option(
        "--settings", "What to train in addition to exact, such as rms-1,score-0.7.", "NAME,..."
    ),
]
_Seeds = Annotated[int, option("--seeds", "Trainings of each setting, seeds 0 to N - 1.", "N")]
_Steps = Annotated[
    int | None, option("--steps", "Steps of each training; default: those of the recipe.", "N")
]
_Preset = Annotated[
    str | None,
    option("--preset", "Recipe of alexnet or resnet34; default: one-cycle or cifar.", "NAME"),
]
_Form = Annotated[
    str | None,
    option("--form", "Form of the graph's matrix, only for gcn: csr (default), matmul, or linear."),
]
_Dtype = Annotated[str | None, option("--dtype", "Dtype that the model computes in: fp32 or bf16.")]
_Jobs = Annotated[int, option("--jobs", "Trainings that run at the same time.", "N")]
_Evals = Annotated[
    int, option("--evals", "Evaluations of each training, and probes of its gradient.", "N")
]


def activations(
    context: typer.Context,
    model: _Model,
    data: _Data = "synthetic",
    settings: _Settings = None,
    seeds: _Seeds = 3,
    steps: _Steps = None,
    batch: every.Batch = None,
    rate: every.Rate = None,
    dtype: _Dtype = None,
    preset: _Preset = None,
    form: _Form = None,
    device: every.Device = "cpu",
    jobs: _Jobs = 1,
    evals: _Evals = 10,
    smoke: SmokeOption = False,
    output: OutputOption = None,
    resume: ResumeOption = False,
    as_json: JsonOption = False,
) -> int:
    """Train a model with exact and with compressed activations, and judge it seed by seed.

    Trainings of a seed begin with the same weights and take the same batches. A row per training, with the
    score of its gradients. Exits with 1 when a compressed training diverges.
    """
    from tersor.bench.activations.accuracy import DEFAULT_SETTINGS, AccuracyConfig, run_accuracy
    from tersor.bench.activations.recipes import recipe_of

    screen = Screen(as_json=as_json)
    check_device(device)
    if seeds < 1 or (steps is not None and steps < 1):
        raise SpecError(f"--seeds and --steps must be at least 1, not {seeds} and {steps}")
    given: dict[str, Any] = {"steps": steps, "batch": batch, "learning_rate": rate}
    given |= {"dtype": dtype, "preset": preset, "form": form}
    asked = {name: value for name, value in given.items() if value is not None}
    recipe: Recipe = recipe_of(model, data, asked, is_smoke=smoke)
    usual = ("rms-1",) if smoke else DEFAULT_SETTINGS
    config = AccuracyConfig(
        recipe=recipe,
        settings=usual if settings is None else names_of(settings),
        seeds=tuple(range(1 if smoke else seeds)),
        device=device,
        jobs=jobs,
        num_evals=1 if smoke else evals,
        eval_samples=16 if smoke else None,
    )
    with (
        Rows(output, resume=resume, command=typed_command(context)) as rows,
        screen.steps("training") as show,
    ):
        outcome = run_accuracy(
            config, done=rows.keys, on_row=rows.append, on_note=screen.say, progress=show
        )
    return show_rows(screen, rows.all, outcome, judges=not smoke)
