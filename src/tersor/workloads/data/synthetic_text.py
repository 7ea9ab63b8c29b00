"""A synthetic text that a model can learn; it needs no download, and the best loss of any model is known.

A sentence begins with any of the words, and each word is followed by one of its few successors, all
equally likely. A model has to learn the spelling of the words and their successors. Every choice is a hash
of (seed, split, sentence, position), so every machine generates the same text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tersor.errors import SpecError
from tersor.workloads.data.hashes import hashes
from tersor.workloads.data.tokens import Split

_NUM_WORDS: Final = 64
_NUM_SUCCESSORS: Final = 4
_SENTENCE: Final = 8
"""Words per sentence."""
_LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_STREAMS: Final = {"train": 1, "validation": 2}
_SPELLING, _SUCCESSION = 3, 4


@dataclass(frozen=True, slots=True)
class SyntheticText:
    """A synthetic text, in bytes.

    Attributes:
        num_train: sentences of the training text, of about 40 bytes each.
        num_validation: sentences of the validation text.
        seed: determines the words, their successors and the sentences.
    """

    num_train: int = 20_000
    num_validation: int = 1_000
    seed: int = 0

    def __post_init__(self) -> None:
        """Require sentences in both splits."""
        if self.num_train < 1 or self.num_validation < 1:
            raise SpecError("a text needs sentences to train on and to be judged by")

    @property
    def name(self) -> str:
        """See ``TokenSource.name``."""
        return f"synthetic text, seed {self.seed}, {self.num_train} + {self.num_validation}"

    @property
    def vocabulary(self) -> int:
        """See ``TokenSource.vocabulary``."""
        return 256

    def tokens(self, split: Split) -> npt.NDArray[Any]:
        """See ``TokenSource.tokens``."""
        count = self.num_train if split == "train" else self.num_validation
        return np.frombuffer(_text(self.seed, split, count), np.uint8)

    def best_loss(self) -> float:
        """Return the lowest mean loss of any model on the validation text, in nats per byte.

        All sentences are equally likely, so the loss depends only on their number and the length of the
        text. A model that sees windows of the text does worse at the start of each window.
        """
        choices = math.log(_NUM_WORDS) + (_SENTENCE - 1) * math.log(_NUM_SUCCESSORS)
        return choices * self.num_validation / len(self.tokens("validation"))


@lru_cache(maxsize=4)
def _text(seed: int, split: Split, num_sentences: int) -> bytes:
    words, successors = _words(seed), _successors(seed)
    bits = hashes(seed, _STREAMS[split], 0, num_sentences * _SENTENCE)
    drawn = (bits >> np.uint64(32)).reshape(num_sentences, _SENTENCE).astype(np.int64)
    chosen = np.empty_like(drawn)
    chosen[:, 0] = drawn[:, 0] % _NUM_WORDS
    for place in range(1, _SENTENCE):
        chosen[:, place] = successors[chosen[:, place - 1], drawn[:, place] % _NUM_SUCCESSORS]
    sentences = (" ".join(words[word] for word in sentence) for sentence in chosen.tolist())
    return "".join(f"{sentence}.\n" for sentence in sentences).encode()


def _words(seed: int) -> list[str]:
    """Return distinct words of two to six letters."""
    words: list[str] = []
    for bits in hashes(seed, _SPELLING, 0, 16 * _NUM_WORDS).tolist():
        letters = [_LETTERS[(bits >> (8 * k)) % len(_LETTERS)] for k in range(2 + bits % 5)]
        word = "".join(letters)
        if word not in words:
            words.append(word)
    return words[:_NUM_WORDS]


def _successors(seed: int) -> npt.NDArray[np.int64]:
    """Return the distinct successors of each word, [words, successors]."""
    order = hashes(seed, _SUCCESSION, 0, _NUM_WORDS * _NUM_WORDS).reshape(_NUM_WORDS, _NUM_WORDS)
    return np.argsort(order, axis=1, kind="stable")[:, :_NUM_SUCCESSORS]
