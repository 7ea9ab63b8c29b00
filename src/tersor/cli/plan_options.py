"""The options of ``tersor plan``."""

from __future__ import annotations

from typing import Annotated

import typer

Rows = Annotated[
    list[str] | None,
    typer.Option("--rows", metavar="FILE", help="Result rows to plan from; may be repeated."),
]
Check = Annotated[
    str | None,
    typer.Option(
        "--check",
        metavar="FILE",
        help="Predict measured exchanges from each other, and show errors.",
    ),
]
HoldOut = Annotated[
    str,
    typer.Option(
        "--hold-out", help="With --check: predict each link, or each batch, from the rest."
    ),
]
Ranks = Annotated[
    str, typer.Option("--ranks", metavar="N,...", help="Numbers of ranks, 2 or more.")
]
Cluster = Annotated[
    str | None,
    typer.Option("--cluster", metavar="FILE", help="TOML or JSON with any of the values below."),
]
PerNode = Annotated[int | None, typer.Option("--ranks-per-node", metavar="N", help="Default: 1.")]
Inter = Annotated[
    str | None,
    typer.Option(
        "--inter",
        metavar="RATE",
        help="Of a node to the others, shared by its ranks; default: 100gbit.",
    ),
]
Intra = Annotated[
    str | None,
    typer.Option("--intra", metavar="RATE", help="Of a rank within its node; default: 2400gbit."),
]
Latency = Annotated[
    str | None,
    typer.Option("--latency", metavar="TIME", help="Of a message between nodes; default: 5us."),
]
IntraLatency = Annotated[
    str | None,
    typer.Option(
        "--intra-latency", metavar="TIME", help="Of a message within a node; default: 2us."
    ),
]
Efficiency = Annotated[
    float | None,
    typer.Option(
        "--efficiency", metavar="X", help="Share of a link an all-to-all reaches; default: fitted."
    ),
]
Batch = Annotated[
    int | None,
    typer.Option("--batch", metavar="N", help="Samples of all ranks per step; default: 65536."),
]
PerRank = Annotated[
    int | None,
    typer.Option("--batch-per-rank", metavar="N", help="Samples of each rank, instead of --batch."),
]
Sample = Annotated[
    int | None,
    typer.Option(
        "--sample-nbytes", metavar="N", help="Looked-up bytes per sample; default: as in the rows."
    ),
]
Compute = Annotated[
    float | None,
    typer.Option(
        "--compute-ms", metavar="MS", help="A rank's computing per step; default: as in the rows."
    ),
]
Trace = Annotated[
    str | None,
    typer.Option(
        "--trace", metavar="FILE", help="Computing from log.jsonl of tersor train dlrm --run-dir."
    ),
]
AllReduce = Annotated[
    float | None,
    typer.Option(
        "--allreduce-mbytes", metavar="MB", help="Dense gradients; default: as in the rows."
    ),
]
Overlap = Annotated[
    float | None,
    typer.Option(
        "--overlap", metavar="X", help="Share of sending hidden by computing; default: 0."
    ),
]
Sweep = Annotated[
    str | None,
    typer.Option(
        "--bandwidth-sweep",
        metavar="LOW..HIGH",
        help="Show the best by bandwidth instead: 1gbit..400gbit.",
    ),
]
Codecs = Annotated[
    str | None,
    typer.Option("--codecs", metavar="NAME,...", help="What to compare; default: all in the rows."),
]
Model = Annotated[
    str | None,
    typer.Option("--input", metavar="NAME", help="The model or dump, of rows with several."),
]
Setting = Annotated[
    str,
    typer.Option(
        "--setting",
        metavar="TEXT",
        help="A part of the words of look-ups measured in several ways.",
    ),
]
Bound = Annotated[
    float | None,
    typer.Option("--bound", metavar="R", help="Relative bound, of rows of the kernels suite."),
]
Backward = Annotated[
    str, typer.Option("--backward", metavar="NAME", help="Codec of gradients, of rows of codecs.")
]
Plot = Annotated[
    str | None,
    typer.Option(
        "--plot", metavar="FILE", help="Draw speed-ups by ranks, or by bandwidth, as SVG."
    ),
]
Output = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write predictions as JSON lines."),
]
