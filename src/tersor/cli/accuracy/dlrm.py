"""``tersor bench accuracy dlrm``."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from rich.text import Text

from tersor.cli.options import JsonOption, option
from tersor.cli.screen import Screen, json_number
from tersor.errors import SpecError

if TYPE_CHECKING:
    from tersor.workloads.data.clicks import ClickSource
    from tersor.workloads.dlrm.comparison import DlrmOutcome
    from tersor.workloads.dlrm.config import DlrmConfig
    from tersor.workloads.training.judgement import Judgement, Pair

    Pairs = list[Pair[DlrmOutcome]]


def dlrm(
    data: Annotated[str, option("--data", "synthetic, or a Criteo log.", "LOG")] = "synthetic",
    seeds: Annotated[int, option("--seeds", "Pairs of trainings, seeds 0 to N - 1.", "N")] = 5,
    steps: Annotated[int | None, option("--steps", "Steps; default: one epoch.", "N")] = None,
    batch: Annotated[int, option("--batch", "Samples of all ranks per step.", "N")] = 512,
    rate: Annotated[float, option("--lr", "Learning rate.", "X")] = 0.05,
    codec: Annotated[str, option("--codec", "Codec of looked-up rows.")] = "rows",
    backward: Annotated[str, option("--backward", "Codec of gradients.")] = "half",
    ranks: Annotated[int, option("--ranks", "Processes that train together.", "N")] = 2,
    samples: Annotated[int, option("--samples", "Training samples of the synthetic log.", "N")] = 1
    << 18,
    max_rows: Annotated[
        int, option("--max-rows", "Rows per table of the synthetic log.", "N")
    ] = 500_000,
    output: Annotated[
        str | None,
        option("--output -o", "Append a line per pair to this file.", "FILE"),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Train DLRM in pairs, with and without compression, and judge the difference in AUC.

    Both directions are compressed. Prints each pair, the mean differences and their 95 % intervals.
    """
    from tersor.bench.embeddings.accuracy import pair_row, run_accuracy
    from tersor.workloads.data.opening import open_clicks

    if seeds < 1:
        raise SpecError(f"--seeds must be at least 1, not {seeds}")
    screen = Screen(as_json=as_json)

    def source_of(seed: int) -> ClickSource:
        if data != "synthetic":
            return open_clicks(data)
        return open_clicks("synthetic", seed=seed, num_train=samples, max_rows=max_rows)

    config = _config(source_of(0), steps, batch, rate, codec, backward)
    pairs: Pairs = []
    with ExitStack() as stack:
        stack.enter_context(screen.compiling())
        file = None if output is None else stack.enter_context(Path(output).open("a"))
        show = stack.enter_context(screen.steps("training"))
        for pair in run_accuracy(config, source_of, range(seeds), ranks=ranks, progress=show):
            pairs.append(pair)
            if file is not None:
                file.write(json.dumps(pair_row(pair)) + "\n")
                file.flush()
    screen.result(_values(pairs), _table(pairs), Text(_sentence(pairs)))
    return 0


def _config(
    source: ClickSource, steps: int | None, batch: int, rate: float, codec: str, backward: str
) -> DlrmConfig:
    from tersor.sites.embeddings import AdaptiveBounds, Decay
    from tersor.workloads.dlrm.config import DlrmConfig
    from tersor.workloads.models.dlrm import DlrmShape

    epoch = source.num_samples("train") // batch
    steps = epoch if steps is None else steps
    return DlrmConfig(
        shape=DlrmShape(source.num_rows, 16, (64, 32), (64, 32)),
        batch=batch,
        steps=steps,
        learning_rate=rate,
        optimizer="adagrad",
        codec=codec,
        backward=backward,
        bounds=AdaptiveBounds(decay=Decay(end=max(1, steps // 5))),
    )


def _judgements(pairs: Pairs) -> list[Judgement]:
    from tersor.workloads.metrics import CLICK_METRICS
    from tersor.workloads.training.judgement import Judgement

    return [Judgement.of(metric, pairs) for metric in CLICK_METRICS]


def _values(pairs: Pairs) -> dict[str, Any]:
    changes = {
        f"{judged.metric.name}_change": {
            "mean": json_number(judged.change.mean),
            "half_width_95": json_number(judged.change.half_width),
            "holds_zero": judged.change.holds_zero,
            "verdict": judged.verdict,
        }
        for judged in _judgements(pairs)
    }
    shown = [
        {"seed": pair.seed, "auc": pair.first.metrics["auc"], "auc_change": pair.change("auc")}
        for pair in pairs
    ]
    return {"pairs": shown, **changes}


def _table(pairs: Pairs) -> Table:
    table = Table(title="The same training without and with compression of look-ups and gradients")
    for k, name in enumerate(
        ("seed", "AUC without", "AUC with", "change", "logloss change", "ratio forward", "backward")
    ):
        table.add_column(name, justify="left" if k == 0 else "right")
    for pair in pairs:
        table.add_row(
            str(pair.seed), f"{pair.first.metrics['auc']:.5f}", f"{pair.second.metrics['auc']:.5f}",
            f"{pair.change('auc'):+.5f}", f"{pair.change('logloss'):+.5f}",
            f"{pair.second.volume('forward').ratio:.1f}",
            f"{pair.second.volume('backward').ratio:.1f}",
        )  # fmt: skip
    return table


def _sentence(pairs: Pairs) -> str:
    """Return the change of each metric with its verdict, in one sentence."""
    changes = (
        f"{judged.metric.name} changes by {judged.change.mean:+.5f}, 95 % interval "
        f"±{judged.change.half_width:.5f}: {judged.verdict}"
        for judged in _judgements(pairs)
    )
    return f"{'; '.join(changes)}; {len(pairs)} pairs."
