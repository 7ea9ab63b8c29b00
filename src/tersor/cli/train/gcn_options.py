"""Options specific to ``tersor train gcn``."""

from __future__ import annotations

from typing import Annotated

from tersor.cli.options import option

Data = Annotated[
    str,
    option(
        "--data",
        "synthetic, ind.NAME.graph of Planetoid, an .npz file, or one of TERSOR_DATA by name.",
        "GRAPH",
    ),
]
Nodes = Annotated[
    int | None, option("--nodes", "Nodes of the synthetic graph; default: 2000.", "N")
]
Model = Annotated[str, option("--model", "gcn, or sage for GraphSAGE with mean aggregation.")]
Form = Annotated[
    str,
    option("--form", "Form of the graph's matrix: csr, matmul (dense), or linear (dense weight)."),
]
Hidden = Annotated[str, option("--hidden", "Width of each hidden layer.", "N,...")]
Dropout = Annotated[
    float, option("--dropout", "Share of values that a layer does not see in training.", "X")
]
Fanouts = Annotated[
    str | None,
    option("--fanouts", "Neighbours that a node draws, by layer; default: all of them.", "N,..."),
]
Batch = Annotated[
    int | None,
    option("--batch", "Nodes of a step, with --fanouts; default: all to train on.", "N"),
]
Rate = Annotated[float, option("--lr", "Learning rate.", "X")]
Study = Annotated[
    bool, option("--study", "Train nothing, but show bytes and times of the three forms.")
]
ProbeEvery = Annotated[
    int,
    option(
        "--activation-probe-every",
        "Steps between measurements of the score, which take the memory of an uncompressed step; 0 for none: "
        "predictions see all errors of these models.",
        "N",
    ),
]
