"""``tersor codecs``: what can be asked for, and what runs here."""

from __future__ import annotations

import pkgutil
from dataclasses import MISSING, fields
from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any, Final

import torch
from rich.table import Table
from rich.text import Text

from tersor import kernels
from tersor.cli.options import JsonOption
from tersor.cli.screen import Screen
from tersor.codecs import Codec, codec_ids, get
from tersor.kernels.op import BACKENDS, Op

_PACKAGES: Final = {"reference": "torch", "cpu": "numba", "gpu": "triton"}


def codecs(as_json: JsonOption = False) -> int:
    """List the codecs with their options and promises, and the kernel backends of this machine."""
    screen = Screen(as_json=as_json)
    found = [get(codec_id) for codec_id in codec_ids()]
    backends = [_backend(name) for name in BACKENDS]
    values = {"codecs": [_values(codec) for codec in found], "backends": backends}
    screen.result(values, _table(values["codecs"]), _backend_table(backends))
    return 0


def _values(codec: type[Codec]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for f in fields(codec):
        if f.name != "bound":
            options[f.name] = None if f.default is MISSING else f.default
    return {
        "id": codec.codec_id,
        "version": codec.version,
        "size_kind": codec.size_kind,
        "guarantee": codec.guarantee,
        "takes_bound": codec.takes_bound(),
        "options": options,
    }


def _backend(name: str) -> dict[str, Any]:
    """Say whether a kernel backend runs here, and which operations it has."""
    operations = {op.name: op.targets for op in _operations()}
    ready = sorted(op for op, targets in operations.items() if name in targets)
    package = _PACKAGES[name]
    installed = find_spec(package) is not None
    why = ""
    if not ready:
        why = "no kernels yet"
    elif not installed:
        why = f"{package} is not installed"
    elif name == "gpu" and not torch.cuda.is_available():
        why = "no CUDA device"
    return {
        "name": name,
        "package": package,
        "version": metadata.version(package) if installed else None,
        "available": not why,
        "why_not": why,
        "operations": ready,
        "num_operations": len(operations),
    }


def _operations() -> list[Op]:
    """Return every kernel operation of the package."""
    found: dict[str, Op] = {}
    for module in pkgutil.iter_modules(kernels.__path__, f"{kernels.__name__}."):
        if module.ispkg:
            for value in vars(import_module(module.name)).values():
                if isinstance(value, Op):
                    found[value.name] = value
    return list(found.values())


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="Codecs")
    table.add_column("codec", no_wrap=True)
    table.add_column("version", justify="right")
    for name in ("size", "promise", "options and defaults"):
        table.add_column(name, overflow="fold")
    for row in rows:
        named = [f"{key}={value}" for key, value in row["options"].items()]
        bound = ["--abs or --rel"] if row["takes_bound"] else []
        table.add_row(
            row["id"],
            str(row["version"]),
            row["size_kind"],
            Text(row["guarantee"]),
            Text(", ".join(bound + named)),
        )
    return table


def _backend_table(backends: list[dict[str, Any]]) -> Table:
    table = Table(title="Kernel backends")
    for name in ("backend", "package", "operations", "here"):
        table.add_column(name)
    for row in backends:
        table.add_row(
            row["name"],
            " ".join(filter(None, (row["package"], row["version"]))),
            f"{len(row['operations'])} of {row['num_operations']}",
            "available" if row["available"] else row["why_not"],
        )
    return table
