"""Tokens of texts: what every source of them gives, and which of them a step and an evaluation take."""

from __future__ import annotations

from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from tersor.errors import SpecError
from tersor.workloads.data.hashes import hashes

Split = Literal["train", "validation"]
Places: TypeAlias = npt.NDArray[np.int64]
_STREAM = 0


class TokenSource(Protocol):
    """Tokens that can be read at any place, so that runs resume and ranks share."""

    @property
    def name(self) -> str:
        """For logs and reports; other tokens have another name."""

    @property
    def vocabulary(self) -> int:
        """How many different tokens there may be; they count from 0."""

    def tokens(self, split: Split) -> npt.NDArray[Any]:
        """Return all tokens of a split, one axis of integers; from a file they are mapped, not read."""


def windows(source: TokenSource, split: Split, starts: Places, length: int) -> torch.Tensor:
    """Return the ``length`` tokens from each start on, int64 [starts, length]."""
    tokens = source.tokens(split)
    found = tokens[starts[:, None] + np.arange(length)]
    return torch.from_numpy(found.astype(np.int64))


def training_starts(num_tokens: int, length: int, seed: int, first: int, count: int) -> Places:
    """Return where training sequences start, by their numbers from ``first`` on.

    A start is drawn from all places of the text, and depends on the seed and the number alone.

    Raises:
        SpecError: the text is shorter than a sequence.

    Example:
        >>> whole = training_starts(1000, 17, seed=3, first=0, count=8)
        >>> bool((whole[4:] == training_starts(1000, 17, seed=3, first=4, count=4)).all())
        True
    """
    places = _num_places(num_tokens, length, "training")
    drawn = hashes(seed, _STREAM, first, count) % np.uint64(places)
    return drawn.astype(np.int64)


def num_windows(num_tokens: int, length: int) -> int:
    """Return how many windows of a split are judged: one begins with the last token of the other.

    Raises:
        SpecError: the text is shorter than one.

    Example:
        >>> num_windows(31, 11), num_windows(30, 11)
        (3, 2)
    """
    _num_places(num_tokens, length, "validation")
    return (num_tokens - 1) // (length - 1)


def _num_places(num_tokens: int, length: int, what: str) -> int:
    if num_tokens < length:
        raise SpecError(
            f"the {what} text has {num_tokens} tokens, and a sequence takes {length}; give a longer "
            "text, or a shorter --context"
        )
    return num_tokens - length + 1
