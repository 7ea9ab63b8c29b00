"""Options specific to ``tersor train gpt``."""

from __future__ import annotations

from typing import Annotated

from tersor.cli.options import option

Data = Annotated[
    str,
    option("--data", "synthetic, a text (plain, .xz, .gz), or one of TERSOR_DATA by name.", "TEXT"),
]
Validation = Annotated[
    str | None,
    option("--validation", "Text to judge the model by; default: the last 5 % of --data.", "TEXT"),
]
Tokenizer = Annotated[str, option("--tokenizer", "bytes, or bpe, learned from the text.")]
Vocabulary = Annotated[int, option("--vocabulary", "Tokens of the bpe, at most.", "N")]
Cache = Annotated[
    str | None, option("--cache", "Folder for tokens; default: that of the text.", "DIR")
]
Preset = Annotated[
    str, option("--preset", "Sizes of the model: 2M, 10M, 30M, 125M, 350M, 1.3B, 2.7B or 6.7B.")
]
Context = Annotated[
    int | None, option("--context", "Tokens of a sequence; default: the preset's.", "N")
]
Accumulation = Annotated[
    int,
    option(
        "--accumulation",
        "Parts in which a rank computes its share of a batch, one after the other.",
        "N",
    ),
]
Scheme = Annotated[
    str,
    option("--scheme", "How ranks exchange: exact, qwd, tlq-hs, both, ...; see docs/shards.md."),
]
Ranks = Annotated[int, option("--ranks", "Ranks that share the model in this one process.", "N")]
RanksPerNode = Annotated[
    int | None,
    option(
        "--ranks-per-node",
        "Ranks of a node; default: as torchrun started them, or all of --ranks.",
        "N",
    ),
]
