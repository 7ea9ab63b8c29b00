"""What ranks say to each other before rows move: that they agree, or that one of them cannot."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import torch.distributed as dist

from tersor.errors import ExchangeError, SpecError

_SHOWN_CHARS: Final = 120
"""Of an argument that differs, so that a sentence about 1,000 tables stays one."""


def check_same_everywhere(
    arguments: Mapping[str, object], what: str, group: dist.ProcessGroup | None
) -> None:
    """Raise ``SpecError`` unless all ranks give the same arguments; a collective call.

    The sentence names the first argument that differs. A rank that has none to give calls
    ``announce_failure`` instead.

    Raises:
        SpecError: a rank differs, or could not make its arguments.
        ExchangeError: a rank is gone.
    """
    own = {name: repr(value) for name, value in arguments.items()}
    every = gathered(own, group)
    for rank, other in enumerate(every):
        if other is None:
            raise SpecError(f"rank {rank} could not make its {what}; look at its error")
    for rank, other in enumerate(every):
        for name, value in every[0].items():
            if other.get(name) != value:
                raise SpecError(
                    f"rank 0 made its {what} with {name}={_shortened(value)}, rank {rank} with "
                    f"{name}={_shortened(str(other.get(name)))}; give all ranks the same {name}"
                )


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def announce_failure(group: dist.ProcessGroup | None) -> None:
    """Let the ranks know that wait to hear of this one, or fail alike; a collective call."""
    # an error of the group would hide the one that is told of
    with suppress(ExchangeError):
        gathered(None, group)


def gathered(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """Return the values of all ranks; a collective call.

    Raises:
        ExchangeError: a rank is gone, or did not come in time.
    """
    every: list[Any] = [None] * dist.get_world_size(group)
    try:
        dist.all_gather_object(every, value, group=group)
    except RuntimeError as error:
        raise ExchangeError(
            f"rank {dist.get_rank(group)} could not reach all other ranks: one of them failed, left "
            f"or timed out; look for the first error of any rank ({first_line(error)})"
        ) from error.with_traceback(None)
    return every


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
