from __future__ import annotations

from typing import Any

from tersor.bench.embeddings.planning.trace import computing_of
from tersor.workloads.data.synthetic import SyntheticClicks
from tersor.workloads.dlrm.comparison import Outcome, compare
from tersor.workloads.dlrm.config import DlrmConfig, uncompressed
from tersor.workloads.models.dlrm import DlrmShape


def test_every_step_is_timed_at_any_number_of_steps() -> None:
    source = SyntheticClicks.scaled(50, num_train=512, num_test=64)
    shape = DlrmShape(source.num_rows, 4, (8,), (8,))
    # a prime: no spacing but 1 divides it
    config = uncompressed(DlrmConfig(shape=shape, batch=16, steps=101, learning_rate=0.1))
    sent: list[Any] = []
    compare(0, sent.append, configs={"plain": config}, source=source, eval_every=0)
    [outcome] = [one for one in sent if isinstance(one, Outcome)]
    assert computing_of(outcome.lines, "the run") > 0
