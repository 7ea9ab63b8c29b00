"""Checks that all ranks agree on their arguments, or learn which rank failed, before any rows move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import torch.distributed as dist

from tersor.errors import ExchangeError, SpecError

_SHOWN_CHARS: Final = 120
"""Most characters shown of an argument that differs: 1,000 tables must not flood the message."""


def check_same_everywhere(
    arguments: Mapping[str, object], what: str, group: dist.ProcessGroup | None
) -> None:
    """Raise ``SpecError`` unless all ranks pass equal arguments; a collective call.

    The message names the first argument that differs. Arguments must be built inside
    ``failure_announced``, so that the other ranks learn of a rank that fails to build them.

    Raises:
        SpecError: the arguments of a rank differ, or it could not build them.
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
    """Return excerpts of two different texts around the first position where they differ.

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
    """Announce any error in the block to the ranks that wait for this one, then re-raise it.

    Those ranks wait in ``gathered``, where this rank contributes None. Nothing is announced if
    ``torch.distributed`` is not initialised.
    """
    try:
        yield
    except Exception:
        if is_distributed():
            # a failing group must not mask the error being announced
            with suppress(ExchangeError):
                gathered(None, group)
        raise


def is_distributed() -> bool:
    """True if ``torch.distributed`` has been initialised."""
    return dist.is_available() and dist.is_initialized()


def check_distributed() -> None:
    """Raise ``SpecError`` unless ``torch.distributed`` has been initialised."""
    if not is_distributed():
        raise SpecError("torch.distributed is not initialised; call init_process_group first")


def gathered(value: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """Return the values of all ranks, in rank order; a collective call.

    Raises:
        ExchangeError: a rank is gone or timed out.
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
    """Return the first line of an error's message, or its class name if the message is empty."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
