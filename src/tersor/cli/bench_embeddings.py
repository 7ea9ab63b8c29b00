"""``tersor bench embeddings``: encoders on dumped look-ups, or exchanges between real ranks."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tersor.cli.bench import OutputOption, ResumeOption, Rows, SmokeOption, show_rows
from tersor.cli.bench_lookups import measure_lookups
from tersor.cli.options import JsonOption, names_of, numbers_of, option, typed_command
from tersor.cli.screen import Screen
from tersor.errors import SpecError

_Folder = Annotated[
    str | None, typer.Argument(metavar="DIR", help="Dumped look-ups: .npy, .npz, .pt, raw float32.")
]
_Synthetic = Annotated[bool, option("--synthetic", "Synthetic look-ups instead of dumped ones.")]
_Ranks = Annotated[
    int, option("--ranks", "How many exchange; look-ups are cut for as many destinations.", "N")
]
_PerNode = Annotated[
    int | None,
    option("--ranks-per-node", "Exchanges: ranks that share a node and its link; default: 1.", "N"),
]
_Bandwidth = Annotated[
    str,
    option(
        "--bandwidth",
        "Of each node's link: 100mbit, 1gbit ...; throttled where that is possible, up to 800gbit; or "
        "what speed-ups of look-ups are predicted for, without a limit.",
        "RATE,...",
    ),
]
_Batch = Annotated[
    str | None,
    option("--batch", "Samples of all ranks per step; default: 2048, or a dump's rows.", "N,..."),
]
_Preset = Annotated[
    str | None,
    option("--preset", "Exchanges: sizes of the model, small, kaggle or terabyte (default)."),
]
_Dim = Annotated[
    int | None,
    option("--dim", "Values per row; default: the preset's, or what the dumps say.", "N"),
]
_Exchanges = Annotated[
    str | None, option("--exchanges", "Exchanges: what to compare; default: all.", "NAME,...")
]
_Codecs = Annotated[
    str | None, option("--codecs", "Look-ups: our encoders; default: all.", "NAME,...")
]
_Peers = Annotated[
    str | None,
    option("--peers", "Look-ups: other projects' codecs; none for no peer.", "NAME,..."),
]
_Classes = Annotated[
    str | None,
    option(
        "--classes",
        "Look-ups: auto finds the tables' classes from their first look-up; hand does not.",
    ),
]
_Tight = Annotated[
    str | None, option("--tight-tables", "Look-ups: numbers of the tight tables.", "N,N,...")
]
_Loose = Annotated[
    str | None, option("--loose-tables", "Look-ups: numbers of the loose tables.", "N,N,...")
]
_Bounds = Annotated[
    str | None,
    option("--bounds", "Look-ups: relative bounds of tight, base and loose tables.", "T,B,L"),
]
_Decay = Annotated[
    str | None,
    option(
        "--decay",
        "Look-ups: how bounds tighten: step, linear, log, constant; default: final bounds.",
    ),
]
_Magnitude = Annotated[
    float | None,
    option("--decay-magnitude", "Look-ups: how many times looser they start; default: 2.", "X"),
]
_DecayEnd = Annotated[
    int | None,
    option("--decay-end", "Look-ups: iteration of the final bounds; default: 65536.", "N"),
]
_First = Annotated[
    int | None, option("--from-iteration", "Look-ups: leave out those dumped before it.", "N")
]
_CodeDtype = Annotated[
    str | None,
    option("--code-dtype", "Look-ups: int8, int16 or auto, for encoders that take codes."),
]
_Repeat = Annotated[
    int | None,
    option("--repeat", "Look-ups: repeat the rows, which flatters LZ and rows.", "N"),
]
_Device = Annotated[
    str | None, option("--device", "Look-ups: where to measure, cpu (default) or cuda.")
]
_Details = Annotated[bool, option("--details", "Look-ups: show every encoder on every table too.")]
_Rounds = Annotated[
    int | None, option("--rounds", "Timed rounds; default: 9, or 5 per table of look-ups.", "N")
]


def embeddings(
    context: typer.Context,
    folder: _Folder = None,
    synthetic: _Synthetic = False,
    ranks: _Ranks = 4,
    ranks_per_node: _PerNode = None,
    bandwidth: _Bandwidth = "1gbit",
    batch: _Batch = None,
    preset: _Preset = None,
    dim: _Dim = None,
    exchanges: _Exchanges = None,
    codecs: _Codecs = None,
    peers: _Peers = None,
    classes: _Classes = None,
    tight: _Tight = None,
    loose: _Loose = None,
    bounds: _Bounds = None,
    decay: _Decay = None,
    magnitude: _Magnitude = None,
    decay_end: _DecayEnd = None,
    first: _First = None,
    code_dtype: _CodeDtype = None,
    repeat: _Repeat = None,
    device: _Device = None,
    details: _Details = False,
    rounds: _Rounds = None,
    smoke: SmokeOption = False,
    output: OutputOption = None,
    resume: ResumeOption = False,
    as_json: JsonOption = False,
) -> int:
    """With DIR or --synthetic: every encoder and peer on looked-up rows, table by table.

    Without: the exchange of look-ups and gradients between real ranks, and whole steps with it. Ranks
    run in network namespaces whose links the kernel throttles, which takes Linux, root, and the
    commands ip and tc; elsewhere they use loopback, and every row says so.

    Exits with 1 when decoded rows broke their bound: nothing is then reported.
    """
    options = {
        "--codecs": codecs, "--peers": peers, "--classes": classes, "--tight-tables": tight,
        "--loose-tables": loose, "--bounds": bounds, "--decay": decay,
        "--decay-magnitude": magnitude, "--decay-end": decay_end, "--code-dtype": code_dtype,
        "--repeat": repeat, "--from-iteration": first, "--device": device, "--details": details or None,
    }  # fmt: skip
    screen = Screen(as_json=as_json)
    shared: dict[str, Any] = {"ranks": ranks, "bandwidth": bandwidth, "batch": batch, "dim": dim}
    shared |= {"rounds": rounds, "smoke": smoke}
    shared["rows"] = {"path": output, "resume": resume, "command": typed_command(context)}
    if folder is not None or synthetic:
        given = {"--preset": preset, "--exchanges": exchanges, "--ranks-per-node": ranks_per_node}
        _refuse(given, "exchanges between ranks")
        return measure_lookups(screen, folder, synthetic, shared, options)
    _refuse(options, "look-ups: name a folder of dumps, or --synthetic")
    shared["ranks_per_node"] = 1 if ranks_per_node is None else ranks_per_node
    return _measure_exchanges(screen, preset or "terabyte", exchanges, shared)


def _refuse(options: dict[str, Any], what: str) -> None:
    given = next((name for name, value in options.items() if value is not None), None)
    if given is not None:
        raise SpecError(f"{given} is for {what}")


def _measure_exchanges(
    screen: Screen, preset: str, exchanges: str | None, shared: dict[str, Any]
) -> int:
    from tersor.bench.embeddings.contenders import CONTENDERS
    from tersor.bench.embeddings.suite import EmbeddingsConfig, run_embeddings
    from tersor.workloads.network import Bandwidth

    config = EmbeddingsConfig(
        num_ranks=shared["ranks"],
        ranks_per_node=shared["ranks_per_node"],
        bandwidths=tuple(Bandwidth.parse(text) for text in names_of(shared["bandwidth"])),
        batches=numbers_of(shared["batch"] or "2048", "--batch", int),
        preset=preset,
        dim=shared["dim"],
        contenders=CONTENDERS if exchanges is None else names_of(exchanges),
        rounds=9 if shared["rounds"] is None else shared["rounds"],
    )
    with Rows(**shared["rows"]) as rows, screen.steps("measuring") as show:
        config = config.smoke() if shared["smoke"] else config
        outcome = run_embeddings(
            config, done=rows.keys, on_row=rows.append, on_note=screen.say, on_case=show
        )
    return show_rows(screen, rows.all, outcome, judges=not shared["smoke"])
