"""Opens click logs from any supported source."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tersor.errors import SpecError
from tersor.workloads.data.clicks import ClickSource
from tersor.workloads.data.criteo import TERABYTE_MAX_ROWS, day_files, is_day_file, open_criteo
from tersor.workloads.data.npz import NpzClicks
from tersor.workloads.data.synthetic import SyntheticClicks

SYNTHETIC: Final = "synthetic"
_TRAIN_NAMES: Final = ("train.txt", "train.txt.gz")
_OPTIONS: Final = {
    "the synthetic log": ("num_rows", "num_train", "num_test", "seed", "max_rows"),
    "a text log": ("cache", "max_rows", "min_count", "progress"),
    "an .npz log": ("seed", "max_rows", "min_count"),
}


def open_clicks(
    source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], **options: Any
) -> ClickSource:
    """Open a click log.

    Args:
        source: ``"synthetic"``; a text file like Criteo Kaggle's ``train.txt``, plain or gzip; the folder
            or the list of the files ``day_0``, ``day_1`` ... of Criteo Terabyte; or an ``.npz`` file.
        options: of ``SyntheticClicks`` (or ``max_rows``), ``open_criteo`` or ``NpzClicks``. For files
            named ``day_*``, ``max_rows`` defaults to 10 million.

    Raises:
        CorruptDataError: the data is damaged.
        SpecError: there is no such log, or it does not take one of the options.

    Example:
        >>> log = open_clicks("synthetic", max_rows=1000, num_train=4096)
        >>> log.num_samples("train"), max(log.num_rows)
        (4096, 1000)
    """
    if source == SYNTHETIC:
        _check_options("the synthetic log", options)
        max_rows = options.pop("max_rows", None)
        if max_rows is None:
            return SyntheticClicks(**options)
        if "num_rows" in options:
            raise SpecError("the synthetic log takes num_rows or max_rows, not both")
        return SyntheticClicks.scaled(max_rows, **options)
    paths = [*map(Path, [source] if isinstance(source, str | os.PathLike) else source)]
    if len(paths) == 1 and paths[0].is_dir():
        paths = _files_of(paths[0])
    if not paths:
        raise SpecError("a click log needs at least one file")
    for path in paths:
        if not path.is_file():
            raise SpecError(f"there is no file {path}; name a click log, or 'synthetic'")
    if len(paths) == 1 and _is_npz(paths[0]):
        _check_options("an .npz log", options)
        return NpzClicks(paths[0], **options)
    _check_options("a text log", options)
    if all(is_day_file(path) for path in paths):
        options.setdefault("max_rows", TERABYTE_MAX_ROWS)
    return open_criteo(paths, **options)


def _files_of(folder: Path) -> list[Path]:
    """Return the files of the log in a folder."""
    found = day_files(folder) or [folder / n for n in _TRAIN_NAMES if (folder / n).exists()][:1]
    if not found:
        raise SpecError(f"{folder} has neither files day_0, day_1, ... nor train.txt")
    return found


def _is_npz(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"PK" or path.suffix == ".npz"


def _check_options(kind: str, options: dict[str, Any]) -> None:
    unknown = sorted(options.keys() - set(_OPTIONS[kind]))
    if unknown:
        raise SpecError(f"{kind} takes {', '.join(_OPTIONS[kind])}, not {', '.join(unknown)}")
