"""What ranks tell each other before rows move: that they agree, or that one of them cannot."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch.distributed as dist

from tersor.errors import SpecError


def check_same_everywhere(arguments: str, what: str, group: dist.ProcessGroup | None) -> None:
    """Raise ``SpecError`` unless all ranks give the same arguments; a collective call.

    A rank that has none to give calls ``tell_of_failure`` instead.
    """
    for rank, other in enumerate(gathered(arguments, group)):
        if other is None:
            raise SpecError(f"rank {rank} could not make its {what}; look at its error")
        if other != arguments:
            raise SpecError(
                f"rank {dist.get_rank(group)} and rank {rank} made their {what} with different "
                "arguments; give all ranks the same tables, bounds, codecs, bandwidth and dtype"
            )


def tell_of_failure(group: dist.ProcessGroup | None) -> None:
    """Let the ranks know that wait to hear of this one, or fail alike; a collective call."""
    # an error of the group would hide the one that is told of
    with suppress(RuntimeError):
        gathered(None, group)


def gathered(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """Return the values of all ranks; a collective call."""
    every: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(every, value, group=group)
    return every
