"""Tokens of texts: the interface of their sources, and the windows that steps and evaluations use."""

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
    """Tokens with random access, so that runs can resume and ranks can read their own shares."""

    @property
    def name(self) -> str:
        """Name for logs and reports; unique to the tokens."""

    @property
    def vocabulary(self) -> int:
        """Number of possible tokens, which count from 0."""

    def tokens(self, split: Split) -> npt.NDArray[Any]:
        """Return all tokens of a split as a 1-D array of integers, memory-mapped if in a file."""


def windows(source: TokenSource, split: Split, starts: Places, length: int) -> torch.Tensor:
    """Return ``length`` tokens from each start on, int64 [starts, length]."""
    tokens = source.tokens(split)
    found = tokens[starts[:, None] + np.arange(length)]
    return torch.from_numpy(found.astype(np.int64))


def training_starts(num_tokens: int, length: int, seed: int, first: int, count: int) -> Places:
    """Return the starts of the training sequences ``first`` to ``first + count``.

    A start is drawn uniformly from the text, and depends only on the seed and the number of the sequence.

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
    """Return the number of evaluation windows; each begins with the last token of the previous one.

    Raises:
        SpecError: the text is shorter than one window.

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
