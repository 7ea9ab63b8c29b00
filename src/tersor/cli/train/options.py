"""The options of ``tersor train dlrm``."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def _option(name: str, text: str, metavar: str | None = None) -> Any:
    return typer.Option(name, metavar=metavar, help=text)


Data = Annotated[
    str, _option("--data", "synthetic, or a Criteo log: train.txt, a folder of day_*, .npz.", "LOG")
]
Preset = Annotated[str, _option("--preset", "Sizes of the model: small, kaggle or terabyte.")]
MaxRows = Annotated[
    int | None, _option("--max-rows", "Most rows per table; ids are cut or hashed.", "N")
]
Steps = Annotated[
    int, _option("--steps", "Steps to train for, those before a --resume included.", "N")
]
Batch = Annotated[
    int | None, _option("--batch", "Samples of all ranks per step; default: the preset's.", "N")
]
Rate = Annotated[float | None, _option("--lr", "Learning rate; default: the preset's.", "X")]
Optimizer = Annotated[str, _option("--optimizer", "sgd or adagrad.")]
Seed = Annotated[int, _option("--seed", "Of the weights, and of the synthetic log.")]
Codec = Annotated[
    str, _option("--codec", "Of looked-up rows: an id, auto, or raw for no compression.")
]
Backward = Annotated[str, _option("--backward", "Of gradients: none, half, group8, or another id.")]
Bounds = Annotated[
    str | None,
    _option("--bounds", "Relative bounds of tight, base and loose tables, or one of all.", "T,B,L"),
]
Tight = Annotated[str | None, _option("--tight-tables", "Numbers of the tight tables.", "N,N,...")]
Loose = Annotated[str | None, _option("--loose-tables", "Numbers of the loose tables.", "N,N,...")]
Classes = Annotated[
    str, _option("--classes", "auto finds the classes of the tables from a batch; hand does not.")
]
Decay = Annotated[
    str | None,
    _option(
        "--decay",
        "How bounds, looser at first, tighten: step, linear, log or constant; default: step.",
    ),
]
Magnitude = Annotated[
    float | None,
    _option("--decay-magnitude", "How many times looser bounds start; default: 2.", "X"),
]
DecayEnd = Annotated[
    int | None,
    _option(
        "--decay-end",
        "Iteration of the final bounds; default: a fifth of the steps; 0: final from the start.",
        "N",
    ),
]
Bandwidth = Annotated[str, _option("--bandwidth", "Of the network, for --codec auto.", "RATE")]
Device = Annotated[str, _option("--device", "cpu or cuda.")]
# not --run alone: torchrun takes that for an abbreviation of its --run-path
RunFolder = Annotated[
    str | None,
    typer.Option(
        "--run-dir",
        "--run",
        metavar="DIR",
        help="Folder for the log, and for checkpoints; --run is the same, but not under torchrun.",
    ),
]
CheckpointEvery = Annotated[
    int, _option("--checkpoint-every", "Steps between checkpoints; 0 for none.", "N")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on from the last checkpoint in --run-dir.")
]
EvalEvery = Annotated[
    int, _option("--eval-every", "Steps between evaluations; 0 for one at the end.", "N")
]
EvalSamples = Annotated[
    int | None, _option("--eval-samples", "Test samples of each; default: all.", "N")
]
Dumps = Annotated[
    str | None, _option("--dump-embeddings", "Write looked-up rows per table here.", "DIR")
]
DumpEvery = Annotated[
    int, _option("--dump-every", "Steps between dumps; the last step is dumped too.", "N")
]
LogEvery = Annotated[int, _option("--log-every", "Steps between lines about the loss.", "N")]
Tensorboard = Annotated[
    bool, typer.Option("--tensorboard", help="Write TensorBoard files to --run-dir too.")
]
