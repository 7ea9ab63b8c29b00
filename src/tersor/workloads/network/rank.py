"""Entry point of a rank of ``RankProcesses``: ``python -m tersor.workloads.network.rank FD``.

FD is the file descriptor of its pipe.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Final

from tersor._process import end_rank
from tersor.errors import TersorError
from tersor.workloads.ranks import meeting

_TIMEOUT: Final = timedelta(seconds=120)
_END_S: Final = 10.0


def _watch(pipe: Any, messages: SimpleQueue[Any]) -> None:
    """Forward messages to the queue; end the process if the sender is gone."""
    with suppress(EOFError, OSError):
        while (message := pipe.recv()) is not None:
            messages.put(message)
        messages.put(None)
        # peers that left early can hold the main thread until the group's timeout
        time.sleep(_END_S)
    os._exit(1)


def main() -> int:
    """Answer messages until the final None; return the exit code."""
    pipe: Any = Connection(int(sys.argv[1]))
    if (first := pipe.recv()) is None:
        return 0
    make, settings, place = first
    messages: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_watch, args=(pipe, messages), daemon=True).start()
    try:
        with meeting(**place, timeout=_TIMEOUT):
            answer_to = make(**settings)
            pipe.send({"answer": None})
            while (message := messages.get()) is not None:
                pipe.send({"answer": answer_to(message)})
    except TersorError as error:
        pipe.send({"error": str(error)})
        return 1
    return 0


if __name__ == "__main__":
    end_rank(main())
