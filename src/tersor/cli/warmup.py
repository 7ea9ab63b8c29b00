"""``tersor warmup``: compiles kernels ahead of time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch
from rich.table import Table

from tersor.cli.arrays import parse_dtype
from tersor.cli.failures import CHECK_FAILED
from tersor.cli.options import JsonOption, check_device, names_of, option
from tersor.cli.screen import Screen
from tersor.types import DTYPE_NAMES
from tersor.warm_up import WarmedUp, warmup

_CodecsOption = Annotated[
    str | None,
    option("--codecs", "Codecs, see 'tersor codecs'; default: those fast on the device.", "ID,..."),
]
_DtypesOption = Annotated[
    str | None,
    option("--dtypes", "Dtypes of the tensors; default: f32, on cuda also bf16.", "NAME,..."),
]


def warm_up(
    device: Annotated[str, option("--device", "Where kernels run: cpu or cuda.")] = "cpu",
    codecs: _CodecsOption = None,
    dtypes: _DtypesOption = None,
    as_json: JsonOption = False,
) -> int:
    """Compile the kernels of codecs ahead of time; later processes load them from disk.

    Exits with 1 when a second run of the same tensors had to compile again.
    """
    screen = Screen(as_json=as_json)
    check_device(device)
    names = None if codecs is None else names_of(codecs)
    wanted = None if dtypes is None else _parsed(dtypes)
    with screen.compiling(), screen.steps("compiling") as show:
        found = warmup(names, wanted, device, progress=show)
    rows = [_values(one) for one in found]
    compile_s = sum(one.compile_s for one in found)
    screen.result({"device": device, "compile_s": compile_s, "codecs": rows}, _table(device, rows))
    if not as_json:
        screen.say(f"compiling took {compile_s:.1f} s; what is on disk is loaded from now on")
    return CHECK_FAILED if any(one.again_s for one in found) else 0


def _parsed(text: str) -> list[torch.dtype]:
    parsed = (parse_dtype(name) for name in names_of(text))
    return [dtype for dtype in parsed if dtype is not None]


def _values(one: WarmedUp) -> dict[str, Any]:
    return {
        "codec": one.codec,
        "dtype": DTYPE_NAMES[one.dtype],
        "compile_s": one.compile_s,
        "again_s": one.again_s,
    }


def _table(device: str, rows: Sequence[dict[str, Any]]) -> Table:
    table = Table(title=f"Kernels compiled on {device}")
    for name in ("codec", "dtype"):
        table.add_column(name)
    for name in ("compiling, s", "second run, s"):
        table.add_column(name, justify="right")
    for row in rows:
        seconds = (f"{row[name]:.1f}" for name in ("compile_s", "again_s"))
        table.add_row(row["codec"], row["dtype"], *seconds)
    return table
