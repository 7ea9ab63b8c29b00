"""``tersor bench shards``: training steps that exchange weights and gradients over throttled links."""

from __future__ import annotations

from typing import Annotated

import typer

from tersor.cli.bench import OutputOption, ResumeOption, Rows, SmokeOption, show_rows
from tersor.cli.options import JsonOption, names_of, option, typed_command
from tersor.cli.screen import Screen

_Ranks = Annotated[int, option("--ranks", "Number of ranks that train together.", "N")]
_PerNode = Annotated[int, option("--ranks-per-node", "Ranks that share a node and its link.", "N")]
_Bandwidth = Annotated[
    str,
    option(
        "--bandwidth",
        "Bandwidth of each node's link: 100mbit, 1gbit ...; throttled where that is possible.",
        "RATE,...",
    ),
]
_Batch = Annotated[
    int | None,
    option("--batch", "Sequences of all ranks per step; default: one of each rank.", "N"),
]
_Preset = Annotated[str, option("--preset", "Sizes of the GPT: 2M, 10M, 30M, 125M ...")]
_Exchanges = Annotated[
    str | None, option("--exchanges", "What to compare; default: all.", "NAME,...")
]
_Rounds = Annotated[int, option("--rounds", "Timed rounds.", "N")]


def shards(
    context: typer.Context,
    ranks: _Ranks = 4,
    ranks_per_node: _PerNode = 2,
    bandwidth: _Bandwidth = "1gbit",
    batch: _Batch = None,
    preset: _Preset = "10M",
    exchanges: _Exchanges = None,
    rounds: _Rounds = 5,
    smoke: SmokeOption = False,
    output: OutputOption = None,
    resume: ResumeOption = False,
    as_json: JsonOption = False,
) -> int:
    """Steps of a GPT under FSDP2 and DDP with several methods of exchange.

    Nodes are network namespaces of several ranks whose links the kernel throttles, which takes Linux,
    root, and the commands ip and tc; elsewhere ranks use loopback, and every row says so. Bits per weight
    and gradient are read from the counters of the links.

    Exits with 1 when a training of ours leaves the losses of float32: its times are then not reported.
    """
    from tersor.bench.shards.contenders import VARIANTS
    from tersor.bench.shards.suite import ShardsConfig, run_shards
    from tersor.workloads.network import Bandwidth

    screen = Screen(as_json=as_json)
    config = ShardsConfig(
        num_ranks=ranks,
        ranks_per_node=ranks_per_node,
        bandwidths=tuple(Bandwidth.parse(text) for text in names_of(bandwidth)),
        batch=0 if batch is None else batch,
        variants=tuple(VARIANTS) if exchanges is None else names_of(exchanges),
        preset=preset,
        rounds=rounds,
    )
    with (
        Rows(output, resume=resume, command=typed_command(context)) as rows,
        screen.steps("measuring") as show,
    ):
        outcome = run_shards(
            config.smoke() if smoke else config,
            done=rows.keys, on_row=rows.append, on_note=screen.say, on_case=show,
        )  # fmt: skip
    return show_rows(screen, rows.all, outcome, judges=not smoke)
