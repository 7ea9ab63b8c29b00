"""Codecs of other packages: finding them, and saying in one sentence why one cannot be used.

A package offers codecs with ``[project.entry-points."tersor.codecs"]``, one ``name =
"module:Class"`` per codec, whose ``codec_id`` is that name. Nothing here imports one before it is
asked for.
"""

from __future__ import annotations

import inspect
import sys
from importlib.metadata import EntryPoint, entry_points
from types import TracebackType
from typing import Any, Final, Self

from tersor.codecs.codec import Codec

GROUP: Final = "tersor.codecs"


class Attempt:
    """A block of another package's code; afterwards ``error`` is what it raised, if anything.

    Such code may raise whatever it likes, and must not take the caller with it; only an interrupt by
    the user passes.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        """Begin the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> bool:
        """Keep the error."""
        if isinstance(error, Exception | SystemExit):
            self.error = error
        return self.error is not None

    @property
    def words(self) -> str:
        """The error in one line: its type and what it says."""
        said = " ".join(str(self.error).split())
        return f"{type(self.error).__name__}{f': {said}' if said else ''}"


def offers(codec_id: str | None = None) -> list[EntryPoint]:
    """Return what installed packages offer under an id, or all they offer, by id and package."""
    found = (
        entry_points(group=GROUP) if codec_id is None else entry_points(group=GROUP, name=codec_id)
    )
    return sorted(found, key=lambda point: (point.name, package_of(point)))


def package_of(point: EntryPoint) -> str:
    """Return the name of the distribution that an entry point belongs to."""
    return "unknown" if point.dist is None else str(point.dist.name)


def place_of(codec: type[Codec]) -> str:
    """Return where a codec class is defined, written as in an entry point."""
    return f"{codec.__module__}:{codec.__qualname__}"


def names(point: EntryPoint, codec: type[Codec]) -> bool:
    """True if an entry point names that class, also from a module that only imports it.

    This imports no module: one that is not imported yet is taken to define what it names.
    """
    # what is written in an entry point may have no module at all
    with Attempt():
        if place_of(codec) == f"{point.module}:{point.attr}":
            return True
        return point.module in sys.modules and place_of(point.load()) == place_of(codec)
    return False


def unusable(point: EntryPoint, why: str) -> str:
    """Return the sentence that tells a user which package's codec is left out, and why."""
    package = package_of(point)
    return (
        f"codec {point.name!r} of package {package!r} cannot be used: {why}; "
        f"update or uninstall {package!r}"
    )


def load(point: EntryPoint) -> tuple[Any, str]:
    """Import what an entry point names; return it, and what is wrong with it as a codec if anything."""
    with Attempt() as attempt:
        offered = point.load()
    if attempt.error is not None:
        return None, f"importing {point.value!r} raised {attempt.words}"
    fault = fault_of(offered)
    if not fault and offered.codec_id != point.name:
        fault = f"its codec_id is {offered.codec_id!r}; the entry point must have the same name"
    return offered, fault


def fault_of(codec: object) -> str:
    """Say what a class lacks to be a codec; empty if nothing.

    Example:
        >>> fault_of(3)
        'it is no subclass of tersor.Codec'
    """
    if not (isinstance(codec, type) and issubclass(codec, Codec)):
        return "it is no subclass of tersor.Codec"
    if inspect.isabstract(codec):
        return f"it lacks {', '.join(sorted(codec.__abstractmethods__))}"
    for name, says in (("codec_id", "its id"), ("guarantee", "what it promises, in one line")):
        text = getattr(codec, name, None)
        if not isinstance(text, str) or not text or not text.isprintable():
            return f"it has no {name}, a string that says {says}"
    if type(codec.version) is not int or codec.version < 1:
        return f"its version must be a whole number from 1 on, not {codec.version!r}"
    if codec.size_kind not in ("fixed", "bounded"):
        return f"its size_kind must be 'fixed' or 'bounded', not {codec.size_kind!r}"
    return ""
