"""Disk cache of measured costs: one JSON file per GPU model and version, in the user's cache folder."""

from __future__ import annotations

import json
import logging
import os
import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Self

import torch

from tersor._version import __version__
from tersor.atomic import atomic_write
from tersor.codecs.costs.measuring import MEASURED
from tersor.codecs.costs.table import CodecCost, Costs
from tersor.errors import SpecError

_log = logging.getLogger("tersor")


def _versions() -> dict[str, str]:
    """Return the versions of the packages that costs depend on, by name."""
    try:
        triton = metadata.version("triton")
    except metadata.PackageNotFoundError:
        triton = "unknown"
    return {"tersor": __version__, "torch": str(torch.__version__), "triton": triton}


@dataclass(frozen=True, slots=True)
class CostCache:
    """Costs on disk, by GPU name. Reading and writing never raise; problems are logged."""

    folder: Path

    @classmethod
    def of_user(cls) -> Self:
        """Return the cache in ``$XDG_CACHE_HOME/tersor``, or ``~/.cache/tersor``."""
        base = Path(os.environ.get("XDG_CACHE_HOME", ""))
        # the XDG specification says to ignore relative paths
        if not base.is_absolute():
            try:
                base = Path.home() / ".cache"
            except RuntimeError:
                # no home directory: use a path that nothing can be written to
                base = Path(os.devnull)
        return cls(base / "tersor")

    def path(self, device: str) -> Path:
        """Return the path of a GPU's file, whose name contains the versions of tersor, torch and Triton."""
        versions = "-".join(f"{name}{version}" for name, version in _versions().items())
        return self.folder / f"costs-{re.sub(r'[^A-Za-z0-9.+]+', '_', f'{device}-{versions}')}.json"

    def load(self, device: str) -> Costs | None:
        """Return the cached costs of a GPU; None if there are none or the file is unusable."""
        path = self.path(device)
        try:
            return _parsed(json.loads(path.read_bytes()), device)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (
            OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, SpecError,
        ) as error:  # fmt: skip
            _log.warning("the costs in %s cannot be used (%s)", path, error)
            return None

    def store(self, costs: Costs) -> bool:
        """Write the costs atomically; return whether that succeeded.

        If several processes write at the same time, the last one wins.
        """
        path = self.path(costs.device)
        values = {"device": costs.device, "versions": _versions(), "codecs": costs.to_config()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as file:
                file.write(json.dumps(values, indent=2).encode() + b"\n")
        except (OSError, SpecError) as error:
            _log.warning("the costs of %s cannot be written to %s (%s)", costs.device, path, error)
            return False
        return True


def _parsed(values: Any, device: str) -> Costs:
    """Return the costs in a parsed file.

    Malformed content raises ``SpecError``, or the error of a wrong type or missing key.
    """
    if values["device"] != device or values["versions"] != _versions():
        raise SpecError("they are of another GPU or version")
    costs = {name: CodecCost(**values["codecs"][name]) for name in MEASURED}
    return Costs(device, "measured", costs)
