"""Discovery of codecs in other packages, with a one-sentence reason for each that cannot be used.

A package offers codecs through ``[project.entry-points."tersor.codecs"]``, with one ``name = "module:Class"`` per
codec, where ``name`` is its ``codec_id``. A codec is imported only when it is requested.
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
    """A context manager for third-party code that stores in ``error`` the exception the block raised, if any.

    Such code may raise anything, including ``SystemExit``, without affecting the caller. A keyboard interrupt still
    propagates.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> Self:
        """Enter the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> bool:
        """Store and suppress the error."""
        if isinstance(error, Exception | SystemExit):
            self.error = error
        return self.error is not None

    @property
    def message(self) -> str:
        """The type and message of the error, in one line."""
        said = " ".join(str(self.error).split())
        return f"{type(self.error).__name__}{f': {said}' if said else ''}"


def codec_entry_points(codec_id: str | None = None) -> list[EntryPoint]:
    """Return the codec entry points of installed packages, of one id or of all, sorted by id and package."""
    found = (
        entry_points(group=GROUP) if codec_id is None else entry_points(group=GROUP, name=codec_id)
    )
    return sorted(found, key=lambda point: (point.name, package_of(point)))


def package_of(point: EntryPoint) -> str:
    """Return the name of the distribution that provides an entry point."""
    return "unknown" if point.dist is None else str(point.dist.name)


def place_of(codec: type[Codec]) -> str:
    """Return where a codec class is defined, in the ``module:Class`` form of an entry point."""
    return f"{codec.__module__}:{codec.__qualname__}"


def refers_to(point: EntryPoint, codec: type[Codec]) -> bool:
    """True if an entry point refers to that class, directly or through a module that re-exports it.

    This never imports a module. A module that is not imported yet is assumed to define the class that it names.
    """
    # a malformed entry point may name no module at all
    with Attempt():
        if place_of(codec) == f"{point.module}:{point.attr}":
            return True
        return point.module in sys.modules and place_of(point.load()) == place_of(codec)
    return False


def unusable(point: EntryPoint, why: str) -> str:
    """Return a sentence for the user that says which codec is ignored, from which package, and why."""
    package = package_of(point)
    return (
        f"codec {point.name!r} of package {package!r} cannot be used: {why}; "
        f"update or uninstall {package!r}"
    )


def load(point: EntryPoint) -> tuple[Any, str]:
    """Import the object of an entry point; return it and the reason it is no valid codec, empty if it is one."""
    with Attempt() as attempt:
        offered = point.load()
    if attempt.error is not None:
        return None, f"importing {point.value!r} raised {attempt.message}"
    fault = fault_of(offered)
    if not fault and offered.codec_id != point.name:
        fault = f"its codec_id is {offered.codec_id!r}; the entry point must have the same name"
    return offered, fault


def fault_of(codec: object) -> str:
    """Return the reason why an object is not a valid codec class; empty if it is one.

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
