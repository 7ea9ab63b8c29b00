"""``tersor bench compare``: changes between two result files, distinguished from noise."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tersor.bench.core.compare import NOISE_PERCENT
from tersor.cli.failures import CHECK_FAILED
from tersor.cli.options import JsonOption, option
from tersor.cli.screen import Screen
from tersor.errors import SpecError

if TYPE_CHECKING:
    from tersor.bench.core.compare import Comparison


def compare(
    before: Annotated[str, typer.Argument(metavar="A", help="Result rows before (.jsonl).")],
    after: Annotated[str, typer.Argument(metavar="B", help="Result rows after (.jsonl).")],
    fail_on_slower: Annotated[
        float | None,
        option(
            "--fail-on-slower",
            "Exit with 1 if a time is longer by more than this, beyond noise.",
            "PERCENT",
        ),
    ] = None,
    noise: Annotated[
        float,
        option("--noise", "Medians that differ by less than this are the same.", "PERCENT"),
    ] = NOISE_PERCENT,
    per_copy: Annotated[
        bool,
        option(
            "--per-copy",
            "Compare times as multiples of the copy timed in the same rounds; those of rows "
            "without a copy are left out.",
        ),
    ] = False,
    every: Annotated[bool, option("--all", "Show pairs without a change, too.")] = False,
    as_json: JsonOption = False,
) -> int:
    """Hold two result files against each other: B's times, sizes and errors against A's.

    Rows match by everything but version and commit. A time has changed where the intervals from the
    20th to the 80th percentile do not meet and the medians are further apart than --noise.
    """
    from tersor.bench.core.compare import compare_rows
    from tersor.bench.core.compare_tables import (
        comparison_sentence,
        comparison_table,
        comparison_values,
        unmatched_sentences,
    )
    from tersor.bench.core.row_file import read_rows

    if fail_on_slower is not None and not (0 <= fail_on_slower < math.inf):
        raise SpecError(f"--fail-on-slower takes a percentage from 0 on, not {fail_on_slower:g}")
    screen = Screen(as_json=as_json)
    names = _names(before, after)
    comparison = compare_rows(
        read_rows(before), read_rows(after), names=names, noise_percent=noise, per_copy=per_copy
    )
    for sentence in comparison.warnings:
        screen.say(sentence)
    words = [comparison_sentence(comparison), *unmatched_sentences(comparison, names)]
    has_table = every or any(pair.changed for pair in comparison.pairs)
    table = [comparison_table(comparison, names, every_pair=every)] if has_table else []
    screen.result(comparison_values(comparison), *table, *map(Text, words))
    return 0 if fail_on_slower is None else _exit_code(screen, comparison, fail_on_slower)


def _exit_code(screen: Screen, comparison: Comparison, percent: float) -> int:
    failed = comparison.slower_than(percent)
    if failed:
        pair, worst = max(failed, key=lambda found: found[1].slowdown_percent)
        screen.say(
            f"times longer by more than {percent:g} %: {len(failed)}; the worst: {worst.name} of "
            f"{pair.before.codec} on {pair.before.input} by {worst.slowdown_percent:.1f} %"
        )
    return CHECK_FAILED if failed else 0


def _names(before: str, after: str) -> tuple[str, str]:
    """Return the names of the files, with their folders only if the names are equal."""
    one, other = Path(before), Path(after)
    return (one.name, other.name) if one.name != other.name else (str(one), str(other))
