"""``tersor report``: builds one self-contained page from result files and runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tersor.cli.options import ForceOption, JsonOption, names_of, option, typed_command
from tersor.cli.screen import Screen, binary_size, printable
from tersor.errors import SpecError

if TYPE_CHECKING:
    from tersor.bench.report import Page


def report(
    context: typer.Context,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Result files (.jsonl of any suite), folders of them, or run folders.",
        ),
    ],
    output: Annotated[str, option("--output -o", "The page to write.", "FILE")] = "report.html",
    figures: Annotated[
        str | None,
        option("--figures", "Write every figure to this folder as .svg.", "DIR"),
    ] = None,
    title: Annotated[str, option("--title", "Title of the page.", "TEXT")] = "tersor report",
    bandwidth: Annotated[
        str | None,
        option(
            "--bandwidth",
            "Bandwidths for which speed-ups are predicted, as in 10gbit,400gbit; default: common ones.",
            "RATE,...",
        ),
    ] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> int:
    """Build one HTML page from results: summary, sortable tables, figures, environment, commands.

    The page needs no network and no other file; its readers can set the bandwidth of their own link. A report is written over an earlier one; any other file
    only with --force.
    """
    from tersor.bench.report import COMMON_LINKS, build_report, read_runs
    from tersor.bench.sites import report_sections

    target = Path(output)
    _check_target(target, force=force)
    links = COMMON_LINKS if bandwidth is None else _links(bandwidth)
    found = read_runs(runs)
    command = typed_command(context)
    page = build_report(found, report_sections(), title=title, command=command, links=links)
    targets = {} if figures is None else _figure_targets(page, Path(figures), force=force)
    nbytes = write_whole(target, page.render())
    for name, path in targets.items():
        write_whole(path, f"{page.figures[name].svg}\n")
    paths = [str(path) for path in targets.values()]
    # the last chapter is about the page itself
    said = [(r, chapter.section.sentence) for r, chapter in zip(found, page.chapters, strict=False)]
    values = {
        "output": output,
        "nbytes": nbytes,
        "runs": [{"name": r.name, "path": r.path, "summary": sentence} for r, sentence in said],
        "figures": paths or list(page.figures),
    }
    lines = [f"{run.name}: {sentence}" for run, sentence in said]
    ending = f"{len(page.figures)} figures" + (f", also in {figures}" if figures else "")
    lines.append(f"Report: {output}  ({binary_size(nbytes)}, {ending})")
    Screen(as_json=as_json).result(values, *(Text(printable(line)) for line in lines))
    return 0


def _links(text: str) -> list[float]:
    """Parse comma-separated bandwidths to Gbit/s, without duplicates."""
    from tersor.planning import parse_bandwidth

    links = [parse_bandwidth(word) / 1e9 for word in names_of(text)]
    if not links:
        raise SpecError("--bandwidth names at least one link, as in 10gbit")
    return list(dict.fromkeys(links))


def _check_target(target: Path, *, force: bool) -> None:
    """Raise ``SpecError``, before any work is done, if a file other than a report would be overwritten."""
    from tersor.bench.report import GENERATOR

    if target.is_dir():
        raise SpecError(f"{target} is a folder; name a file, as in -o {target / 'report.html'}")
    if target.exists() and not force:
        with target.open("rb") as file:
            is_report = GENERATOR.encode() in file.read(4096)
        if not is_report:
            raise SpecError(
                f"{target} exists and is no report; name another file with -o, or overwrite it "
                "with --force"
            )


def write_whole(target: Path, text: str) -> int:
    """Write a text atomically, creating its folder; return its size in bytes."""
    from tersor.atomic import atomic_write

    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(target) as file:
        return file.write(text.encode())


def _figure_targets(page: Page, folder: Path, *, force: bool) -> dict[str, Path]:
    """Return the file of each figure; raise ``SpecError`` if one exists, before anything is written."""
    targets = {name: folder / f"{name}.svg" for name in page.figures}
    taken = next((target for target in targets.values() if target.exists()), None)
    if taken is not None and not force:
        raise SpecError(
            f"{taken} exists; name another folder with --figures, or overwrite it with --force"
        )
    return targets
