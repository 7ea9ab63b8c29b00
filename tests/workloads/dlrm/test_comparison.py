from __future__ import annotations

from functools import partial
from typing import Any

from tersor.bench.embeddings.planning.trace import computing_s
from tersor.workloads.data.synthetic import SyntheticClicks
from tersor.workloads.dlrm import DlrmConfig, DlrmRun
from tersor.workloads.dlrm.comparison import DlrmOutcome
from tersor.workloads.dlrm.config import uncompressed
from tersor.workloads.models.dlrm import DlrmShape
from tersor.workloads.training.comparison import train_each


def test_every_step_is_timed_at_any_number_of_steps() -> None:
    source = SyntheticClicks.scaled(50, num_train=512, num_test=64)
    shape = DlrmShape(source.num_rows, 4, (8,), (8,))
    # a prime: no spacing but 1 divides it
    config = uncompressed(DlrmConfig(shape=shape, batch=16, steps=101, learning_rate=0.1))
    sent: list[Any] = []
    plain = partial(DlrmRun, config, source)
    train_each(0, sent.append, settings={"plain": plain}, eval_every=0)
    [outcome] = [one for one in sent if isinstance(one, DlrmOutcome)]
    assert computing_s("the run", outcome.lines) > 0
