"""Measurement of encoders on look-ups for ``tersor bench embeddings DIR``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tersor.cli.bench import Rows, show_rows
from tersor.cli.options import check_device, names_of, numbers_of
from tersor.cli.screen import Screen
from tersor.errors import SpecError

if TYPE_CHECKING:
    from tersor.bench.embeddings.lookups.config import LookupsConfig
    from tersor.bench.embeddings.lookups.inputs import LookUps

_SMOKE_BATCH = 256


def measure_lookups(
    screen: Screen,
    folder: str | None,
    synthetic: bool,
    shared: dict[str, Any],
    options: dict[str, Any],
) -> int:
    """Measure look-ups, show tables and, unless it is a smoke run, goals; return the exit code.

    Args:
        screen: output of the command.
        folder: of the dumps, or None.
        synthetic: whether look-ups are synthetic instead of dumped.
        shared: options that are common with exchanges, by name.
        options: the other options, by their spelling on the command line; None if not given.

    Raises:
        SpecError: the dumps or the options are invalid.
    """
    from tersor.bench.embeddings.lookups.suite import run_lookups
    from tersor.bench.embeddings.lookups.tables import lookup_summary, lookup_tables
    from tersor.planning import bandwidth_words, parse_bandwidth

    # nothing is throttled here, so any bandwidth is accepted
    links = [parse_bandwidth(text) for text in names_of(shared["bandwidth"])]
    bandwidths = {bandwidth_words(bits_per_s, digits=6): bits_per_s / 1e9 for bits_per_s in links}
    if not bandwidths:
        raise SpecError("--bandwidth names at least one link, as in 1gbit")
    config = _config(shared, options)
    with screen.compiling():
        look_ups = _look_ups(folder, synthetic, shared)
    with Rows(**shared["rows"]) as rows, screen.compiling(), screen.steps("measuring") as show:
        outcome = run_lookups(
            config, look_ups, done=rows.keys, on_row=rows.append, on_note=screen.say, on_table=show
        )
    return show_rows(
        screen,
        rows.all,
        outcome,
        shown=lookup_tables(rows.all, bandwidths, details=bool(options["--details"])),
        summary={"summary": lookup_summary(rows.all, bandwidths)},
        judges=not shared["smoke"],
    )


def _look_ups(folder: str | None, synthetic: bool, shared: dict[str, Any]) -> LookUps:
    from tersor.bench.embeddings.lookups.inputs import SyntheticLookUps
    from tersor.cli.arrays.dumps import FolderLookUps

    if synthetic and folder is not None:
        raise SpecError("measure a folder of dumps or --synthetic, not both")
    if folder is not None:
        return FolderLookUps(folder, shared["dim"])
    dim = 64 if shared["dim"] is None else shared["dim"]
    if shared["smoke"]:
        # all tables, although a smoke run measures three, because options may name any of them
        return SyntheticLookUps(dim=dim, num_iterations=1, batch=_SMOKE_BATCH)
    return SyntheticLookUps(dim=dim)


def _config(shared: dict[str, Any], options: dict[str, Any]) -> LookupsConfig:
    from tersor.bench.embeddings.lookups.config import LookupsConfig
    from tersor.bench.embeddings.lookups.inputs import Cut

    device = options["--device"] or "cpu"
    check_device(device)
    batches = numbers_of(shared["batch"] or "", "--batch", int)
    if len(batches) > 1:
        raise SpecError("look-ups are cut into one --batch; run the others on their own")
    repeat, first = options["--repeat"], options["--from-iteration"]
    cut = Cut(shared["ranks"], batches[0] if batches else None, 1 if repeat is None else repeat)
    asked: dict[str, Any] = {"cut": cut, "first_iteration": first or 0, **_policy(options)}
    for name in ("codecs", "peers"):
        text = options[f"--{name}"]
        if text is not None:
            asked[name] = () if text == "none" else names_of(text)
    if options["--code-dtype"] is not None:
        asked["code_dtype"] = options["--code-dtype"]
    config = LookupsConfig.for_device(device, **asked)
    if shared["smoke"]:
        config = config.smoke()
    return config if shared["rounds"] is None else replace(config, rounds=shared["rounds"])


def _policy(options: dict[str, Any]) -> dict[str, Any]:
    """Return the config fields for classes, bounds and decay."""
    from tersor.sites.embeddings import ClassBounds, Decay

    classes = options["--classes"] or "auto"
    if classes not in ("auto", "hand"):
        raise SpecError(f"--classes must be auto or hand, not {classes!r}")
    asked: dict[str, Any] = {"by_hand": classes == "hand"}
    for name in ("tight", "loose"):
        text = options[f"--{name}-tables"]
        if text is not None:
            asked[name] = frozenset(numbers_of(text.replace(" ", ","), f"--{name}-tables", int))
    if options["--bounds"] is not None:
        values = numbers_of(options["--bounds"], "--bounds", float)
        if len(values) != 3:
            raise SpecError(
                f"--bounds takes three growing numbers, as in 0.01,0.03,0.05, not {values}"
            )
        asked["bounds"] = ClassBounds(*values)
    named = {"shape": "--decay", "magnitude": "--decay-magnitude", "end": "--decay-end"}
    changes = {name: options[one] for name, one in named.items() if options[one] is not None}
    if changes:
        asked["decay"] = Decay(**changes)
    return asked
