"""``tersor codecs``: the available codecs, and the kernel backends of this machine."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields
from importlib import metadata
from importlib.util import find_spec
from typing import Annotated, Any, Final

import torch
from rich.table import Table
from rich.text import Text

from tersor.cli.failures import CHECK_FAILED
from tersor.cli.options import JsonOption, check_device, option
from tersor.cli.screen import Screen
from tersor.codecs import Codec, create, get, usable_codecs
from tersor.codecs.costs import CostCache, costs_on, renewed_costs_on
from tersor.errors import SpecError
from tersor.kernels import operations
from tersor.kernels.runtime.op import BACKENDS, COMPOSED
from tersor.types import Bound

_PACKAGES: Final = {"reference": "torch", "cpu": "numba", "gpu": "triton"}
_CheckOption = Annotated[
    str | None,
    option(
        "--check",
        "Check that one codec, with its default options, keeps what codecs promise; exit "
        "code 1 if it does not.",
        "ID",
    ),
]
_CostsOption = Annotated[
    bool, option("--costs", "Show the measured times and speeds by which auto chooses a codec.")
]
_DeviceOption = Annotated[
    str | None,
    option(
        "--device", "With --costs: those of cpu or cuda; default: cuda if there is one.", "NAME"
    ),
]
_RenewOption = Annotated[
    bool, option("--renew", "With --costs: measure them on this GPU now, and cache them.")
]


def codecs(
    check: _CheckOption = None,
    show_costs: _CostsOption = False,
    device: _DeviceOption = None,
    renew: _RenewOption = False,
    as_json: JsonOption = False,
) -> int:
    """List the codecs with their options and promises, and the kernel backends of this machine."""
    screen = Screen(as_json=as_json)
    if show_costs:
        if check is not None:
            raise SpecError("give --check or --costs, not both")
        return _show_costs(screen, device, renew=renew)
    if device is not None or renew:
        raise SpecError("--device and --renew belong to --costs; give it too")
    if check is not None:
        return _check(screen, check)
    found, problems = usable_codecs()
    for problem in problems:
        screen.say(f"tersor: {problem}")
    backends = [_backend(name) for name in BACKENDS]
    listed = [_values(codec) for codec in found]
    values = {"codecs": listed, "unusable": problems, "backends": backends}
    screen.result(values, _table(listed), _backend_table(backends))
    return 0


def _check(screen: Screen, codec_id: str) -> int:
    """Show which promises the codec keeps on adverse inputs; return the exit code."""
    # imported here because no other verb needs the checks
    from tersor.testing import run_checks

    bound = {"bound": Bound.relative(1e-3)} if get(codec_id).takes_bound() else {}
    with screen.compiling():
        results = run_checks(create(codec_id, **bound))
    checks = [{"name": r.name, "passed": r.passed, "problem": r.problem} for r in results]
    passed = all(result.passed for result in results)
    table = Table(title=f"Promises of codec {codec_id}")
    for name in ("promise", "kept", "first problem"):
        table.add_column(name, overflow="fold")
    for result in results:
        table.add_row(result.name, "yes" if result.passed else "no", Text(result.problem))
    screen.result({"codec": codec_id, "passed": passed, "checks": checks}, table)
    return 0 if passed else CHECK_FAILED


def _show_costs(screen: Screen, name: str | None, *, renew: bool) -> int:
    """Show the costs on a device, measured anew if ``renew``; return the exit code."""
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    check_device(name)
    device = torch.device(name)
    with screen.compiling():
        costs = renewed_costs_on(device) if renew else costs_on(device)
    path = CostCache.of_user().path(costs.device)
    file = str(path) if costs.source == "measured" and path.is_file() else None
    values = costs.to_config()
    table = Table(title=f"What auto chooses by: {costs.origin}", caption=file)
    table.add_column("codec", no_wrap=True)
    for column in ("encode: fixed us", "encode: GB/s", "decode: fixed us", "decode: GB/s"):
        table.add_column(column, justify="right")
    for codec, cost in values.items():
        table.add_row(codec, *(f"{value:,.4g}" for value in cost.values()))
    found = {"device": costs.device, "source": costs.source, "file": file, "codecs": values}
    screen.result(found, table)
    return 0


def _values(codec: type[Codec]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for f in fields(codec):
        if f.name != "bound":
            default = None if f.default is MISSING else f.default
            # a default that JSON cannot represent, as a plug-in may have, is shown as text
            options[f.name] = json.loads(json.dumps(default, default=str))
    return {
        "id": codec.codec_id,
        "version": codec.version,
        "size_kind": codec.size_kind,
        "guarantee": codec.guarantee,
        "takes_bound": codec.takes_bound(),
        "options": options,
    }


def _backend(name: str) -> dict[str, Any]:
    """Describe a kernel backend: its package, whether it runs here, and its operations."""
    every = operations()
    ready = sorted(op for op, found in every.items() if {name, COMPOSED} & set(found.targets))
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
        "num_operations": len(every),
    }


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
