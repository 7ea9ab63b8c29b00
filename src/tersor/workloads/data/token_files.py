"""A folder with the tokens of a text, created once and then memory-mapped.

    tokens.json          the manifest; it is written last, and marks the folder as complete
    train.tokens         little-endian integers, as wide as the vocabulary needs
    validation.tokens    the same
    bpe.json             the tokenizer, if it is a BPE

The folder name contains a hash of text and tokenizer, so every combination has its own folder.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from tersor.atomic import atomic_write
from tersor.errors import CorruptDataError, SpecError, TersorError
from tersor.workloads.data.bpe import BpeTokenizer, ByteTokenizer, Tokenizer
from tersor.workloads.data.source_files import Fingerprint
from tersor.workloads.data.text import TextPart
from tersor.workloads.data.tokens import Split
from tersor.workloads.locks import locked_folder

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with the current activity, the tokens done, and their total (0: unknown)."""

_VERSION: Final = 1
_MANIFEST: Final = "tokens.json"


class TokenManifest(msgspec.Struct, frozen=True):
    """The contents of ``tokens.json``.

    Attributes:
        version: of the files.
        vocabulary: number of possible tokens.
        dtype: of the files, as a numpy type string.
        num_tokens: of each split.
        digest: hash of all tokens.
    """

    version: int
    vocabulary: int
    dtype: str
    num_tokens: dict[str, int]
    digest: str


@dataclass(frozen=True, slots=True)
class TokenFiles:
    """The tokens of a text; it holds no open files, so it can be passed to other processes.

    Attributes:
        name: for logs and reports; it contains the hash of the tokens.
        folder: of the files.
        manifest: of that folder.
    """

    name: str
    folder: Path
    manifest: TokenManifest

    @property
    def vocabulary(self) -> int:
        """See ``TokenSource.vocabulary``."""
        return self.manifest.vocabulary

    def tokens(self, split: Split) -> npt.NDArray[Any]:
        """See ``TokenSource.tokens``.

        Raises:
            CorruptDataError: the file is missing or damaged.
        """
        path, count = self.folder / f"{split}.tokens", self.manifest.num_tokens[split]
        dtype = np.dtype(self.manifest.dtype)
        try:
            if path.stat().st_size == count * dtype.itemsize:
                return np.memmap(path, dtype, "r", shape=(count,))
        except OSError as error:
            raise CorruptDataError(f"{path} cannot be read; delete {self.folder}") from error
        raise CorruptDataError(f"{path} is damaged; delete {self.folder} to prepare it anew")


def token_files(
    path: Path,
    validation: Path | None,
    vocabulary: int | None,
    cache: Path | None,
    progress: Progress,
) -> TokenFiles:
    """Return the tokens of a text, creating them if necessary.

    Args:
        path: of the training text.
        validation: path of the validation text; None for the last twentieth of the training text.
        vocabulary: size of a BPE that is learned from the training text; None for bytes.
        cache: parent of the folder of the tokens; None for the folder of the text.
        progress: called to report the progress.

    Raises:
        CorruptDataError: a file is damaged.
        SpecError: a text cannot be read or is empty, or the folder cannot be written.
        BackendUnavailableError: a BPE is requested, but its package is not installed.
    """
    sources = [Fingerprint.of(one) for one in (path, validation) if one is not None]
    kind = "bytes" if vocabulary is None else f"bpe-{vocabulary}"
    described = json.dumps([_VERSION, kind, msgspec.to_builtins(sources)]).encode()
    folder_name = f"{path.name}.{kind}-{xxhash.xxh3_64_hexdigest(described)}"
    folder = (path.parent if cache is None else cache) / folder_name
    manifest = _found(folder)
    if manifest is None:
        waiting = "waiting for another process that prepares the tokens"
        with locked_folder(folder, lambda: progress(waiting, 0, 0)):
            # another process may have finished meanwhile
            manifest = _found(folder) or _made(folder, path, validation, vocabulary, progress)
    return TokenFiles(f"{path.name}, {kind}, {manifest.digest[:8]}", folder, manifest)


def _found(folder: Path) -> TokenManifest | None:
    try:
        return msgspec.json.decode((folder / _MANIFEST).read_bytes(), type=TokenManifest)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise CorruptDataError(f"{_MANIFEST} in {folder} is damaged; delete the folder") from error


def _made(
    folder: Path, path: Path, validation: Path | None, vocabulary: int | None, progress: Progress
) -> TokenManifest:
    """Write the files of a folder, the manifest last; a text that is rejected leaves no folder behind."""
    for unfinished in folder.glob(".tersor-*.tmp"):
        unfinished.unlink()
    try:
        return _written(folder, path, validation, vocabulary, progress)
    except TersorError:
        shutil.rmtree(folder)
        raise


def _written(
    folder: Path, path: Path, validation: Path | None, vocabulary: int | None, progress: Progress
) -> TokenManifest:
    progress(f"reading {path.name}", 0, 0)
    if validation is None:
        texts = TextPart(path).train_validation_split()
    else:
        texts = (TextPart(path), TextPart(validation))
    tokenizer: Tokenizer = ByteTokenizer()
    if vocabulary is not None:
        progress(f"learning {vocabulary} tokens from {path.name}", 0, 0)
        tokenizer = bpe = BpeTokenizer.trained(texts[0], vocabulary)
        with atomic_write(folder / "bpe.json") as file:
            file.write(bpe.to_json().encode())
    dtype = _dtype(tokenizer.vocabulary)
    digest, counts = xxhash.xxh3_64(), {}
    for split, text in zip(("train", "validation"), texts, strict=True):
        with atomic_write(folder / f"{split}.tokens") as file:
            counts[split] = 0
            for block in tokenizer.encoded(text):
                data = block.astype(dtype).tobytes()
                file.write(data)
                digest.update(data)
                counts[split] += len(block)
                progress(f"making tokens of {text.path.name}", counts[split], 0)
        if not counts[split]:
            raise SpecError(f"{text.path} has no text for {split}; name a longer one")
    manifest = TokenManifest(_VERSION, tokenizer.vocabulary, dtype.str, counts, digest.hexdigest())
    with atomic_write(folder / _MANIFEST) as file:
        file.write(msgspec.json.encode(manifest))
    return manifest


def _dtype(vocabulary: int) -> np.dtype[Any]:
    """Return the narrowest integer dtype that holds all tokens."""
    for name in ("u1", "<u2"):
        if vocabulary <= np.iinfo(name).max + 1:
            return np.dtype(name)
    return np.dtype("<u4")
