"""Opens texts as tokens from any supported source."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from tersor.errors import SpecError
from tersor.workloads.data.progress import terminal_bar
from tersor.workloads.data.synthetic_text import SyntheticText
from tersor.workloads.data.text import find_text
from tersor.workloads.data.token_files import Progress, token_files
from tersor.workloads.data.tokens import TokenSource

SYNTHETIC: Final = "synthetic"
TOKENIZERS: Final = ("bytes", "bpe")
SMALLEST_BPE: Final = 257
"""Smallest BPE vocabulary: all bytes, and ``END_OF_TEXT``."""


def open_text(
    source: str | os.PathLike[str],
    *,
    validation: str | os.PathLike[str] | None = None,
    tokenizer: str = "bytes",
    vocabulary: int = 8192,
    cache: str | os.PathLike[str] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> TokenSource:
    """Open a text as tokens; the first time, it is tokenized and the tokens are cached in files.

    Args:
        source: ``"synthetic"``; a file, plain or compressed as .xz or .gz; or the name of one in the folder
            ``text`` of the folder in the environment variable ``TERSOR_DATA``.
        validation: another such file; None for the last twentieth of ``source``.
        tokenizer: ``"bytes"``, or ``"bpe"``, which is learned from the training text.
        vocabulary: most tokens of the BPE.
        cache: folder for the tokens; None for the folder of the text.
        seed: of the synthetic text.
        progress: reports the progress; None shows a bar on the terminal.

    Raises:
        CorruptDataError: the data is damaged.
        SpecError: there is no such text, or an option is invalid.
        BackendUnavailableError: a BPE is requested, but the package ``tokenizers`` is not installed.

    Example:
        >>> text = open_text("synthetic")
        >>> text.vocabulary, len(text.tokens("train")) > 500_000
        (256, True)
    """
    if tokenizer not in TOKENIZERS:
        raise SpecError(f"tokenizer must be one of {', '.join(TOKENIZERS)}, not {tokenizer!r}")
    if source == SYNTHETIC:
        if tokenizer != "bytes" or validation is not None:
            raise SpecError("the synthetic text has bytes and a validation text of its own")
        return SyntheticText(seed=seed)
    if vocabulary < SMALLEST_BPE:
        raise SpecError(f"a BPE has at least {SMALLEST_BPE} tokens, not {vocabulary}")
    path = find_text(source)
    judged = None if validation is None else find_text(validation)
    size = vocabulary if tokenizer == "bpe" else None
    with terminal_bar() if progress is None else nullcontext(progress) as report:
        return token_files(path, judged, size, None if cache is None else Path(cache), report)
