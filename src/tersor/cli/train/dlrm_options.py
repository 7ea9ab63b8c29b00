"""Options specific to ``tersor train dlrm``."""

from __future__ import annotations

from typing import Annotated

from tersor.cli.options import option

Data = Annotated[
    str, option("--data", "synthetic, or a Criteo log: train.txt, a folder of day_*, .npz.", "LOG")
]
Preset = Annotated[str, option("--preset", "Sizes of the model: small, kaggle or terabyte.")]
MaxRows = Annotated[
    int | None, option("--max-rows", "Most rows per table; ids are cut or hashed.", "N")
]
Optimizer = Annotated[str, option("--optimizer", "sgd or adagrad.")]
Codec = Annotated[
    str, option("--codec", "Codec of looked-up rows: an id, auto, or raw for no compression.")
]
Backward = Annotated[
    str, option("--backward", "Codec of gradients: none, half, group8, or another id.")
]
Bounds = Annotated[
    str | None,
    option("--bounds", "Relative bounds of tight, base and loose tables, or one of all.", "T,B,L"),
]
Tight = Annotated[str | None, option("--tight-tables", "Numbers of the tight tables.", "N,N,...")]
Loose = Annotated[str | None, option("--loose-tables", "Numbers of the loose tables.", "N,N,...")]
Classes = Annotated[
    str, option("--classes", "auto finds the classes of the tables from a batch; hand does not.")
]
Decay = Annotated[
    str | None,
    option(
        "--decay",
        "How bounds, looser at first, tighten: step, linear, log or constant; default: step.",
    ),
]
Magnitude = Annotated[
    float | None,
    option("--decay-magnitude", "How many times looser bounds start; default: 2.", "X"),
]
DecayEnd = Annotated[
    int | None,
    option(
        "--decay-end",
        "Iteration of the final bounds; default: a fifth of the steps; 0: final from the start.",
        "N",
    ),
]
Bandwidth = Annotated[
    str, option("--bandwidth", "Bandwidth of the network, for --codec auto.", "RATE")
]
Dumps = Annotated[
    str | None, option("--dump-embeddings", "Write looked-up rows per table here.", "DIR")
]
DumpEvery = Annotated[
    int, option("--dump-every", "Steps between dumps; the last step is dumped too.", "N")
]
