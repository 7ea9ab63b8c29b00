"""A page put together from runs."""

from __future__ import annotations

from collections.abc import Sequence

from tersor.bench.core.rows import ResultRow
from tersor.bench.html import Page
from tersor.bench.report.codec_rows import add_codec_rows, codec_sentence
from tersor.bench.report.exchanges import add_exchanges, exchange_sentence
from tersor.bench.report.links import COMMON_LINKS, Links
from tersor.bench.report.lookup_rows import add_lookups, lookup_sentence
from tersor.bench.report.origin import commands, environment, machines
from tersor.bench.report.predictions import add_predictions, plan_sentence
from tersor.bench.report.runs import AccuracyRun, PlanRun, RowsRun, Run, TrainingRun
from tersor.bench.report.trainings import (
    accuracy_sentence,
    add_accuracy,
    add_training,
    training_sentence,
)


def build_report(
    runs: Sequence[Run], *, title: str, command: str | None = None, links: Links = COMMON_LINKS
) -> Page:
    """Return the page about all runs.

    Args:
        runs: what it is about.
        title: stands at its top.
        command: what makes this very page.
        links: bandwidths in Gbit/s that speed-ups are predicted for.
    """
    page = Page(title)
    if len(runs) == 1:
        page.lead(run_sentence(runs[0]))
        _add(page, runs[0], links)
    else:
        page.lead(summary(runs))
        page.contents([(run.name, run_sentence(run)) for run in runs])
        for run in runs:
            page.section(run.name).text(run_sentence(run))
            _add(page, run, links)
    if command is not None:
        page.section("This page").text("Made by this command:").code(command)
    return page


def summary(runs: Sequence[Run]) -> str:
    """Return in one sentence how much was measured, and on what."""
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


def run_sentence(run: Run) -> str:
    """Return what a run comes to, in one sentence."""
    if isinstance(run, AccuracyRun):
        return accuracy_sentence(run)
    if isinstance(run, PlanRun):
        return plan_sentence(run)
    if not isinstance(run, RowsRun):
        return training_sentence(run)
    said = zip(_kinds(run.rows), (exchange_sentence, lookup_sentence, codec_sentence), strict=True)
    return " ".join(sentence(rows) for rows, sentence in said if rows)


def _kinds(rows: Sequence[ResultRow]) -> list[list[ResultRow]]:
    """Return the rows of exchanges, of look-ups, and all others."""
    between = [row for row in rows if row.exchange is not None]
    lookups = [row for row in rows if row.exchange is None and row.lookups is not None]
    return [between, lookups, [r for r in rows if r.exchange is None and r.lookups is None]]


def _add_rows(page: Page, run: RowsRun, links: Links) -> None:
    between, lookups, codecs = _kinds(run.rows)
    if between:
        add_exchanges(page, run.name, between)
    if lookups:
        add_lookups(page, run.name, lookups, links)
    if codecs:
        add_codec_rows(page, run.name, codecs, links)


def _add(page: Page, run: Run, links: Links) -> None:
    if isinstance(run, AccuracyRun):
        add_accuracy(page, run)
    elif isinstance(run, PlanRun):
        add_predictions(page, run)
    elif isinstance(run, RowsRun):
        _add_rows(page, run, links)
    else:
        add_training(page, run)
    facts = environment(run)
    if facts:
        page.heading("Environment").facts(facts)
    typed = commands(run)
    page.heading("Remake").text(
        f"From {run.path}, which these commands made:" if typed else f"From {run.path}."
    )
    if typed:
        page.code("\n".join(typed))
