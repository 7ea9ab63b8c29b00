"""Build a page from runs and from the sections that sites provide."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tersor.bench.report.links import COMMON_LINKS, Links
from tersor.bench.report.origin import commands, environment, machines
from tersor.bench.report.page import Page
from tersor.bench.report.runs import AccuracyRun, PlanRun, RowsRun, Run, TrainingRun
from tersor.bench.report.section import Section

SectionMaker = Callable[[Run, Links], Section | None]
"""Returns a site's section about a run, or None if the run has nothing of the site."""


def build_report(
    runs: Sequence[Run],
    makers: Sequence[SectionMaker],
    *,
    title: str,
    command: str | None = None,
    links: Links = COMMON_LINKS,
) -> Page:
    """Return the page about all runs, with one chapter for each.

    Args:
        runs: the runs.
        makers: functions that make the sections of a run, in page order.
        title: title of the page.
        command: the command that makes this page.
        links: bandwidths in Gbit/s for which speed-ups are predicted.
    """
    page = Page(title)
    for run in runs:
        made = [section for make in makers if (section := make(run, links)) is not None]
        chapter = Section(" ".join(section.sentence for section in made))
        chapter.blocks = [block for section in made for block in section.blocks]
        _add_origin(chapter, run)
        page.add(chapter, run.name if len(runs) > 1 else "")
    page.lead = summary(runs) if len(runs) > 1 else page.chapters[0].section.sentence
    if command is not None:
        page.add(Section().text("Made by this command:").code(command), "This page")
    return page


def summary(runs: Sequence[Run]) -> str:
    """Summarise in one sentence how much was measured, and on which machines."""
    num_rows = sum(len(run.rows) for run in runs if isinstance(run, RowsRun))
    num_pairs = sum(len(run.pairs) for run in runs if isinstance(run, AccuracyRun))
    num_predictions = sum(len(run.lines) for run in runs if isinstance(run, PlanRun))
    num_logs = sum(isinstance(run, TrainingRun) for run in runs)
    counts = [
        f"{count:,} {one if count == 1 else many}"
        for count, one, many in (
            (num_rows, "measurement", "measurements"),
            (num_pairs, "pair of trainings", "pairs of trainings"),
            (num_predictions, "prediction", "predictions"),
            (num_logs, "training run", "training runs"),
        )
        if count
    ]
    found = list(dict.fromkeys(name for run in runs for name in machines(run)))
    words = " and ".join([", ".join(counts[:-1]), counts[-1]] if len(counts) > 1 else counts)
    return f"{len(runs)} runs: {words}" + (f", on {' and '.join(found)}." if found else ".")


def _add_origin(section: Section, run: Run) -> None:
    facts = environment(run)
    if facts:
        section.heading("Environment").facts(facts)
    typed = commands(run)
    section.heading("Remake").text(
        f"From {run.path}, which these commands made:" if typed else f"From {run.path}."
    )
    if typed:
        section.code("\n".join(typed))
