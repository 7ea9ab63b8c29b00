"""Options shared by several verbs, and the parsing of their values."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Annotated, Any

import typer

from tersor.errors import BackendUnavailableError, SpecError
from tersor.types import DTYPES, Bound

_DTYPES = ", ".join(DTYPES)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a number, as 1e-3 is") from error


def option(names: str, text: str, metavar: str | None = None, **more: Any) -> Any:
    """Return an option with its help text; ``names`` are separated by spaces."""
    return typer.Option(*names.split(), metavar=metavar, help=text, **more)


JsonOption = Annotated[bool, option("--json", "Write the result to standard output as JSON.")]
ThreadsOption = Annotated[
    int | None,
    option("--threads", "Threads to use; default: as many as torch does.", "N"),
]
ForceOption = Annotated[bool, option("--force", "Overwrite an existing output file.")]
MaxMemoryOption = Annotated[
    str | None,
    option(
        "--max-memory",
        "Most memory for values at a time, as 512M or 4G; default: what the machine has free.",
        "SIZE",
    ),
]
AbsOption = Annotated[
    float | None,
    option("--abs", "Absolute bound: every finite value comes back within E.", "E", parser=_number),
]
RelOption = Annotated[
    float | None,
    option(
        "--rel",
        "Relative bound: every finite value comes back within R times the array's range "
        "(largest minus smallest finite value).",
        "R",
        parser=_number,
    ),
]
DtypeOption = Annotated[
    str | None,
    option(
        "--dtype",
        f"Raw binary input: dtype of the values; one of {_DTYPES}, or torch's name for it.",
        "NAME",
    ),
]
ShapeOption = Annotated[
    str | None,
    option("--shape", "Raw binary input: shape, as in 100,200; default: one axis.", "N,N,..."),
]


def parse_bound(absolute: float | None, relative: float | None) -> Bound | None:
    """Return the bound of --abs or --rel, if any; raise ``SpecError`` if both are given or invalid."""
    if absolute is not None and relative is not None:
        raise SpecError("give one bound, --abs E or --rel R, not both")
    if absolute is not None:
        return Bound.absolute(absolute)
    return None if relative is None else Bound.relative(relative)


def parse_size(text: str | None, name: str = "--max-memory") -> int | None:
    """Parse a size option in bytes; raise ``SpecError`` if it is malformed.

    Example:
        >>> parse_size("640"), parse_size("1.5M"), parse_size("4GiB")
        (640, 1572864, 4294967296)
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,18}(?:\.\d{1,9})?)([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise SpecError(f"{name} must be a size, as 512M or 4G, not {text!r}")
    return int(float(match[1]) * 1024 ** ("KMGT".find(match[2].upper()) + 1 if match[2] else 0))


def use_threads(count: int | None) -> None:
    """Set the number of threads of the process; None leaves torch's default."""
    if count is None:
        return
    if not 1 <= count <= 1024:
        raise SpecError(f"--threads must be from 1 to 1024, not {count}")
    import torch

    torch.set_num_threads(count)


def check_device(name: str) -> None:
    """Check that a device is supported and present.

    Raises:
        SpecError: it is neither the CPU nor a CUDA device.
        BackendUnavailableError: torch finds no CUDA device.
    """
    import torch

    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise SpecError(f"device must be 'cpu' or 'cuda', not {name!r}")
    if name != "cpu" and not torch.cuda.is_available():
        raise BackendUnavailableError("torch finds no CUDA device here; use --device cpu")


def typed_command(context: typer.Context) -> str:
    """Return the running command line, without defaults, in a form that can be repeated."""
    words, arguments = context.command_path.split(), []
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if source is None or source.name == "DEFAULT":
            continue
        value = context.params[name]
        values = [str(one) for one in value] if isinstance(value, list | tuple) else [str(value)]
        if parameter.param_type_name == "argument":
            arguments += values
        elif isinstance(value, bool):
            words += parameter.opts[:1] if value else parameter.secondary_opts[:1]
        else:
            words += [parameter.opts[0], *values]
    return shlex.join([*words, *arguments])


def refuse_given(context: typer.Context, is_odd: Callable[[str], bool], what: str) -> None:
    """Raise ``SpecError`` for the first option that was typed and for which ``is_odd``; ``what`` says what it is for."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        if is_odd(name) and source is not None and source.name != "DEFAULT":
            raise SpecError(f"{parameter.opts[0]} is for {what}")


def names_of(text: str) -> tuple[str, ...]:
    """Split comma-separated names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def numbers_of(text: str, option: str, kind: type[int | float]) -> tuple[Any, ...]:
    """Parse comma-separated numbers; raise ``SpecError`` if one is malformed."""
    try:
        return tuple(kind(number) for number in names_of(text))
    except ValueError as error:
        raise SpecError(f"{option} takes numbers separated by commas, not {text!r}") from error
