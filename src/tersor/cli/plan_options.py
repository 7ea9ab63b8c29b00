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
PerNode = Annotated[int | None, option("--ranks-per-node", "Default: 1.", "N")]
Inter = Annotated[
    str | None,
    option("--inter", "Of a node to the others, shared by its ranks; default: 100gbit.", "RATE"),
]
Intra = Annotated[
    str | None, option("--intra", "Of a rank within its node; default: 2400gbit.", "RATE")
]
Latency = Annotated[
    str | None, option("--latency", "Of a message between nodes; default: 5us.", "TIME")
]
IntraLatency = Annotated[
    str | None, option("--intra-latency", "Of a message within a node; default: 2us.", "TIME")
]
Efficiency = Annotated[
    float | None,
    option("--efficiency", "Share of a link that is reached; default: fitted.", "X"),
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
    option("--compute-ms", "A rank's computing per step; default: as in the rows.", "MS"),
]
Trace = Annotated[
    str | None,
    option("--trace", "Computing from log.jsonl of tersor train dlrm --run-dir.", "FILE"),
]
AllReduce = Annotated[
    float | None, option("--allreduce-mbytes", "Dense gradients; default: as in the rows.", "MB")
]
Overlap = Annotated[
    float | None,
    option("--overlap", "Share of sending hidden; default: 0, or as in rows of shards.", "X"),
]
Parameters = Annotated[
    str | None,
    option("--parameters", "Of rows of shards: weights, as 1.3B; default: as in the rows.", "N"),
]
Backend = Annotated[
    str | None,
    option("--backend", "Of rows of shards: gloo, as in the rows, or nccl. Default: gloo."),
]
CodingSpeed = Annotated[
    float | None,
    option("--coding-gbps", "Of rows of shards: GB/s a rank codes; default: as in them.", "X"),
]
Wrapper = Annotated[
    str | None, option("--wrapper", "Of rows of shards: fsdp or ddp. Default: fsdp, if there.")
]
Sweep = Annotated[
    str | None,
    option("--bandwidth-sweep", "Show the best by bandwidth instead: 1gbit..400gbit.", "LOW..HIGH"),
]
Codecs = Annotated[
    str | None, option("--codecs", "What to compare; default: all in the rows.", "NAME,...")
]
Model = Annotated[str | None, option("--input", "The model or dump, of rows with several.", "NAME")]
Setting = Annotated[
    str, option("--setting", "Part of the title of look-ups measured in several settings.", "TEXT")
]
Bound = Annotated[
    float | None, option("--bound", "Relative bound, of rows of the kernels suite.", "R")
]
Backward = Annotated[str, option("--backward", "Codec of gradients, of rows of codecs.", "NAME")]
Plot = Annotated[
    str | None, option("--plot", "Draw speed-ups by ranks, or by bandwidth, as SVG.", "FILE")
]
Output = Annotated[str | None, option("--output -o", "Write predictions as JSON lines.", "FILE")]
