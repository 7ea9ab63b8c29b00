"""The report section that compares predictions of ``tersor plan`` with measurements."""

from __future__ import annotations

from tersor.bench.planning.check import CHECK_COLUMNS, TOLERANCE
from tersor.bench.plots import Point, scatter_chart
from tersor.bench.report.figure import Figure, slug
from tersor.bench.report.links import Links
from tersor.bench.report.runs import PlanRun, Run
from tersor.bench.report.section import Section


def _sentence(run: PlanRun) -> str:
    """Describe in one sentence how many predictions are close to the measurements."""
    errors = [line["predicted_s"] / line["measured_s"] - 1 for line in run.lines]
    hits = sum(abs(error) <= TOLERANCE for error in errors)
    worst = max(errors, key=abs)
    return (
        f"{hits} of {len(errors)} times are predicted within {TOLERANCE:.0%} from the rows of other "
        f"links or batches; the largest error is {worst:+.0%}."
    )


def predictions_section(run: Run, _links: Links) -> Section | None:
    """Return the section with a figure and a table of predicted and measured times."""
    if not isinstance(run, PlanRun):
        return None
    points = [
        Point("", 1e3 * line["measured_s"], line["predicted_s"] / line["measured_s"], line["what"])
        for line in run.lines
    ]
    ends = (min(point.x for point in points), max(point.x for point in points))
    lines = {
        f"{100 * TOLERANCE:g} % more": [(x, 1 + TOLERANCE) for x in ends],
        "as measured": [(x, 1.0) for x in ends],
        f"{100 * TOLERANCE:g} % less": [(x, 1 - TOLERANCE) for x in ends],
    }
    svg = scatter_chart(
        f"Predicted and measured times: {run.name}", "measured, ms", "predicted over measured",
        points, lines=lines, log_x=True,
    )  # fmt: skip
    caption = "Each point is predicted without the rows of its own link, or of its own batch."
    figure = Figure(slug(run.name, "predictions"), svg, caption)
    cells = [
        [
            line["link"], f"{line['batch']:,}", line["codec"], line["what"],
            f"{1e3 * line['measured_s']:.1f}", f"{1e3 * line['predicted_s']:.1f}",
            f"{100 * (line['predicted_s'] / line['measured_s'] - 1):+.1f}",
        ]
        for line in run.lines
    ]  # fmt: skip
    head = (*CHECK_COLUMNS[:-1], "error %")
    return Section(_sentence(run)).show(figure).table("Predictions", head, cells)
