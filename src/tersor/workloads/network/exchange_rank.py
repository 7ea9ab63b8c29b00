"""One rank of a benchmark of exchanges: ``python -m tersor.workloads.network.exchange_rank``.

Talks as ``RankProcesses`` says. Settings are those of ``Bench``; every message is a ``Case``, and the
answer what this rank measured.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Final, TextIO

import torch
import torch.distributed as dist

from tersor.errors import TersorError
from tersor.workloads.network.exchange_case import Bench, Case

_TIMEOUT: Final = timedelta(seconds=120)
_END_S: Final = 10.0


def _watch(messages: SimpleQueue[Any]) -> None:
    """Hand on the lines of standard input; end the process when whoever wrote them is gone."""
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("end"):
            messages.put(None)
            # peers that left early can hold the main thread until the group's timeout
            time.sleep(_END_S)
            break
        messages.put(message)
    os._exit(1)


def _serve(messages: SimpleQueue[Any], answers: TextIO) -> None:
    def answer(value: Any) -> None:
        answers.write(json.dumps({"answer": value}) + "\n")
        answers.flush()

    settings = messages.get()
    if settings is None:
        return
    rank, num_ranks = settings.pop("rank"), settings.pop("num_ranks")
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // num_ranks))
    dist.init_process_group(
        "gloo", init_method=f"file://{settings.pop('store')}", rank=rank, world_size=num_ranks,
        timeout=_TIMEOUT,
    )  # fmt: skip
    bench = Bench(**settings)
    answer(None)
    while (message := messages.get()) is not None:
        answer(bench.measure(Case.from_config(message)))
    bench.close()
    dist.destroy_process_group()


def main() -> int:
    """Serve until told to end; returns the exit code."""
    # answers go where standard output went; whatever libraries print joins the errors
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    messages: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_watch, args=(messages,), daemon=True).start()
    try:
        _serve(messages, answers)
    except TersorError as error:
        answers.write(json.dumps({"error": str(error)}) + "\n")
        answers.flush()
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
