"""Options common to all ``tersor train`` commands."""

from __future__ import annotations

from typing import Annotated

from tersor.cli.options import option

Steps = Annotated[
    int, option("--steps", "Steps to train for, including those before a --resume.", "N")
]
Batch = Annotated[
    int | None, option("--batch", "Samples of all ranks per step; default: the preset's.", "N")
]
Rate = Annotated[float | None, option("--lr", "Learning rate; default: the preset's.", "X")]
DecaySteps = Annotated[
    int | None,
    option(
        "--decay-steps",
        "Step from which on the learning rate is final; default: the last one.",
        "N",
    ),
]
Seed = Annotated[int, option("--seed", "Seed of the weights and of synthetic data.")]
Dtype = Annotated[str, option("--dtype", "Dtype that the model computes in: fp32 or bf16.")]
Device = Annotated[str, option("--device", "cpu or cuda.")]
# not --run alone, because torchrun takes it for an abbreviation of its --run-path
RunFolder = Annotated[
    str | None,
    option(
        "--run-dir --run",
        "Folder for the log, and for checkpoints; --run is the same, but not under torchrun.",
        "DIR",
    ),
]
CheckpointEvery = Annotated[
    int, option("--checkpoint-every", "Steps between checkpoints; 0 for none.", "N")
]
Resume = Annotated[bool, option("--resume", "Go on from the last checkpoint in --run-dir.")]
EvalEvery = Annotated[
    int, option("--eval-every", "Steps between evaluations; 0 for one at the end.", "N")
]
EvalSamples = Annotated[
    int | None, option("--eval-samples", "Test samples of each evaluation; default: all.", "N")
]
LogEvery = Annotated[int, option("--log-every", "Steps between log lines.", "N")]
Tensorboard = Annotated[bool, option("--tensorboard", "Write TensorBoard files to --run-dir too.")]
