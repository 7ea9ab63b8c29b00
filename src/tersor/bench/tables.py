"""Result rows and goals as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from tersor.bench.goals import Book, Goal
from tersor.bench.rows import ResultRow


def kernels_table(rows: Iterable[ResultRow]) -> Table:
    """Show ratio and speed of every row, and the quotients against memcpy and SZ3.

    Speeds are GB/s of raw float32; ``~`` marks speeds timed on a sample of the slices, ``!`` a peer
    that broke the bound it was given.
    """
    rows = list(rows)
    book = Book(rows)
    table = Table(title="Codecs and peers, end to end from and to float32")
    for name in ("input", "codec", "bound", "threads"):
        table.add_column(name, justify="left" if name != "threads" else "right")
    for name in (
        "ratio", "encode GB/s", "decode GB/s", "x memcpy enc", "x memcpy dec", "x SZ3 enc",
    ):  # fmt: skip
        table.add_column(name, justify="right")
    previous: tuple[str, float | None] | None = None
    for row in rows:
        place = (row.input, row.relative_bound)
        if previous not in (None, place):
            table.add_section()
        previous = place
        table.add_row(*_kernels_cells(row, book))
    return table


def _kernels_cells(row: ResultRow, book: Book) -> list[str]:
    sampled = "~" if row.sampled_fraction < 1 else ""
    broken = "!" if row.bound_held is False else ""
    memcpy = row.memcpy_gbps
    # rows without memcpy start from codes, not from float32: no quotient with those that do
    sz3 = None if memcpy is None else book.counterpart(row, "sz3", peer=True)
    return [
        row.input,
        f"{row.codec} [dim](peer)[/dim]" if row.peer else f"[bold]{row.codec}[/bold]",
        "" if row.relative_bound is None else f"{row.relative_bound:g}{broken}",
        str(row.threads),
        f"{row.ratio:.2f}",
        f"{sampled}{row.encode_gbps:.2f}",
        f"{sampled}{row.decode_gbps:.2f}",
        "" if memcpy is None else f"{row.encode_gbps / memcpy:.2f}",
        "" if memcpy is None else f"{row.decode_gbps / memcpy:.2f}",
        "" if sz3 is None else f"{row.encode_gbps / sz3.encode_gbps:.1f}",
    ]


def goals_table(goals: Iterable[Goal]) -> Table:
    """Show every goal with what was measured and whether that meets it."""
    table = Table(title="Goals")
    for name in ("goal", "target", "measured", "", "decided by"):
        table.add_column(name, justify="right" if name in ("target", "measured") else "left")
    verdicts = {True: "[green]met[/green]", False: "[red]missed[/red]", None: "not measured"}
    for goal in goals:
        measured = "" if goal.measured is None else f"{goal.measured:.3g}"
        table.add_row(goal.name, f"{goal.target:g}", measured, verdicts[goal.met], goal.detail)
    return table
