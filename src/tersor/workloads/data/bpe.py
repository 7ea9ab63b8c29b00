"""Tokenizers: the bytes of a text, or byte-pair encoding (BPE)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import numpy as np
import numpy.typing as npt

from tersor.errors import BackendUnavailableError
from tersor.workloads.data.text import TextPart

END_OF_TEXT: Final = "<|endoftext|>"
"""BPE token that separates the documents of a text."""


class Tokenizer(Protocol):
    """Converts text to tokens."""

    @property
    def vocabulary(self) -> int:
        """Number of possible tokens."""

    def encoded(self, text: TextPart) -> Iterator[npt.NDArray[Any]]:
        """Yield the tokens of a text, block by block."""


class ByteTokenizer:
    """Every byte is a token."""

    vocabulary: ClassVar[int] = 256

    def encoded(self, text: TextPart) -> Iterator[npt.NDArray[Any]]:
        """See ``Tokenizer.encoded``."""
        for block in text.blocks():
            yield np.frombuffer(block, np.uint8)


@dataclass(frozen=True, slots=True)
class BpeTokenizer:
    """Byte-level BPE as in GPT-2, by the package ``tokenizers``.

    Attributes:
        inner: the tokenizer of that package.
    """

    inner: Any

    @classmethod
    def trained(cls, text: TextPart, vocabulary: int) -> BpeTokenizer:
        """Learn merges from a text; a short text may yield fewer tokens than ``vocabulary``.

        Raises:
            BackendUnavailableError: the package is not installed.
        """
        library = tokenizers_library()
        inner = library.Tokenizer(library.models.BPE())
        inner.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        inner.train_from_iterator(text.strings(), trainer)
        return cls(inner)

    @property
    def vocabulary(self) -> int:
        """See ``Tokenizer.vocabulary``."""
        return int(self.inner.get_vocab_size())

    def encoded(self, text: TextPart) -> Iterator[npt.NDArray[Any]]:
        """See ``Tokenizer.encoded``."""
        for block in text.strings():
            yield np.array(self.inner.encode(block).ids, np.uint32)

    def to_json(self) -> str:
        """Serialize in the file format of the package ``tokenizers``."""
        return str(self.inner.to_str())


def tokenizers_library() -> Any:
    """Return the package ``tokenizers``.

    Raises:
        BackendUnavailableError: it is not installed.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise BackendUnavailableError(
            "BPE tokens need the package 'tokenizers', which cannot be imported; install tersor[train], "
            "or train on bytes with --tokenizer bytes"
        ) from error
    return tokenizers
