"""What ranks say to each other before rows move: that they agree, or that one of them cannot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import torch.distributed as dist

from tersor.errors import ExchangeError, SpecError

_SHOWN_CHARS: Final = 120
"""Of an argument that differs, so that a sentence about 1,000 tables stays one."""


def check_same_everywhere(
    arguments: Mapping[str, object], what: str, group: dist.ProcessGroup | None
) -> None:
    """Raise ``SpecError`` unless all ranks give the same arguments; a collective call.

    The sentence names the first argument that differs. A rank that makes its arguments does so
    inside ``failure_announced``.

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
                first, their = _where_they_differ(value, str(other.get(name)))
                raise SpecError(
                    f"rank 0 made its {what} with {name}={first}, rank {rank} with {name}={their}; give "
                    f"all ranks the same {name}"
                )


def _where_they_differ(one: str, other: str) -> tuple[str, str]:
    """Return two texts that differ, cut around the first place where they do.

    Example:
        >>> _where_they_differ("1" * 300 + "23", "1" * 300 + "45")[0][-7:]
        '1111123'
    """
    num_equal = next(
        (k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
    is_long = max(len(one), len(other)) > _SHOWN_CHARS
    start = max(0, num_equal - _SHOWN_CHARS // 2) if is_long else 0
    parts = []
    for text in (one, other):
        part = text[start : start + _SHOWN_CHARS]
        ends = "..." if start else "", "..." if start + _SHOWN_CHARS < len(text) else ""
        parts.append(f"{ends[0]}{part}{ends[1]}")
    return parts[0], parts[1]


@contextmanager
def failure_announced(group: dist.ProcessGroup | None) -> Iterator[None]:
    """Announce an error inside the block to the ranks that wait to hear of this one, and raise it.

    They wait in ``gathered``, which gives them None for this rank. Without ``torch.distributed`` nobody
    waits.
    """
    try:
        yield
    except Exception:
        if is_distributed():
            # an error of the group would hide the one that is announced
            with suppress(ExchangeError):
                gathered(None, group)
        raise


def is_distributed() -> bool:
    """True where ``torch.distributed`` has been initialised."""
    return dist.is_available() and dist.is_initialized()


def check_distributed() -> None:
    """Raise ``SpecError`` unless ``torch.distributed`` has been initialised."""
    if not is_distributed():
        raise SpecError("torch.distributed is not initialised; call init_process_group first")


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
