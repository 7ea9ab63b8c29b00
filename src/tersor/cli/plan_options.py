"""The options of ``tersor plan``."""

from __future__ import annotations

from typing import Annotated

from tersor.cli.options import option

Rows = Annotated[
    list[str] | None, option("--rows", "Result rows to plan from; may be repeated.", "FILE")
]
Check = Annotated[
    str | None,
    option("--check", "Predict measured exchanges from each other, and show errors.", "FILE"),
]
HoldOut = Annotated[
    str, option("--hold-out", "With --check: predict each link, or each batch, from the rest.")
]
Ranks = Annotated[str, option("--ranks", "Numbers of ranks, 2 or more.", "N,...")]
Cluster = Annotated[
    str | None, option("--cluster", "TOML or JSON with any of the values below.", "FILE")
]
PerNode = Annotated[int | None, option("--ranks-per-node", "Ranks of each node; default: 1.", "N")]
Inter = Annotated[
    str | None,
    option(
        "--inter",
        "Bandwidth from a node to the others, shared by its ranks; default: 100gbit.",
        "RATE",
    ),
]
Intra = Annotated[
    str | None, option("--intra", "Bandwidth of a rank within its node; default: 2400gbit.", "RATE")
]
Latency = Annotated[
    str | None, option("--latency", "Latency of a message between nodes; default: 5us.", "TIME")
]
IntraLatency = Annotated[
    str | None,
    option("--intra-latency", "Latency of a message within a node; default: 2us.", "TIME"),
]
Efficiency = Annotated[
    float | None,
    option(
        "--efficiency",
        "Share of a link's bandwidth that exchanges reach; default: fitted to the rows.",
        "X",
    ),
]
Batch = Annotated[
    int | None, option("--batch", "Samples of all ranks per step; default: 65536.", "N")
]
PerRank = Annotated[
    int | None, option("--batch-per-rank", "Samples of each rank, instead of --batch.", "N")
]
Sample = Annotated[
    int | None,
    option("--sample-nbytes", "Looked-up bytes per sample; default: as in the rows.", "N"),
]
Compute = Annotated[
    float | None,
    option(
        "--compute-ms", "Milliseconds that a rank computes per step; default: as in the rows.", "MS"
    ),
]
Trace = Annotated[
    str | None,
    option(
        "--trace",
        "Take the computing time from the log.jsonl of tersor train dlrm --run-dir.",
        "FILE",
    ),
]
AllReduce = Annotated[
    float | None,
    option("--allreduce-mbytes", "Megabytes of dense gradients; default: as in the rows.", "MB"),
]
Overlap = Annotated[
    float | None,
    option(
        "--overlap",
        "Share of sending that computing hides; default: 0, or as in rows of shards.",
        "X",
    ),
]
Parameters = Annotated[
    str | None,
    option(
        "--parameters",
        "Rows of shards: number of weights of the model, as 1.3B; default: as in the rows.",
        "N",
    ),
]
Backend = Annotated[
    str | None,
    option(
        "--backend",
        "Rows of shards: library of the collectives, gloo (as in the rows) or nccl; default: gloo.",
    ),
]
CodingSpeed = Annotated[
    float | None,
    option(
        "--coding-gbps",
        "Rows of shards: gigabytes of values that a rank encodes or decodes per second; default: as in the rows.",
        "X",
    ),
]
Wrapper = Annotated[
    str | None,
    option("--wrapper", "Rows of shards: plan for fsdp or ddp; default: fsdp if the rows have it."),
]
Sweep = Annotated[
    str | None,
    option(
        "--bandwidth-sweep",
        "Show the best choice for each bandwidth instead, as in 1gbit..400gbit.",
        "LOW..HIGH",
    ),
]
Codecs = Annotated[
    str | None,
    option("--codecs", "Codecs or exchanges to compare; default: all in the rows.", "NAME,..."),
]
Model = Annotated[
    str | None, option("--input", "Model or dump to plan for, if the rows have several.", "NAME")
]
Setting = Annotated[
    str,
    option(
        "--setting",
        "Words from the title of the look-ups to plan for, if they were measured in several settings.",
        "TEXT",
    ),
]
Bound = Annotated[
    float | None, option("--bound", "Rows of kernels: the relative bound to plan for.", "R")
]
Backward = Annotated[str, option("--backward", "Rows of codecs: codec of the gradients.", "NAME")]
Plot = Annotated[
    str | None, option("--plot", "Draw speed-ups by ranks, or by bandwidth, as SVG.", "FILE")
]
Output = Annotated[str | None, option("--output -o", "Write predictions as JSON lines.", "FILE")]
