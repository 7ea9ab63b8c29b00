"""Lookup of codecs by id. Built-in codecs register by decorator, those of other packages by entry point."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields
from functools import cache
from importlib.metadata import EntryPoint
from typing import Any, Final, TypeVar

import torch

from tersor.codecs import plugins
from tersor.codecs.codec import Codec
from tersor.errors import SpecError, TersorError, UnknownCodecError, UnsupportedVersionError
from tersor.types import Bound

_log = logging.getLogger("tersor")
_codecs: dict[str, type[Codec]] = {}
_CodecType = TypeVar("_CodecType", bound=type[Codec])


def register(codec: _CodecType) -> _CodecType:
    """Class decorator: register the codec under its ``codec_id``.

    Raises:
        SpecError: another class has the id, or the class is not a valid codec.
    """
    fault = plugins.fault_of(codec)
    if fault:
        raise SpecError(f"{codec!r} cannot be registered as a codec: {fault}")
    known = _codecs.get(codec.codec_id)
    if known is not None and plugins.place_of(known) != plugins.place_of(codec):
        raise SpecError(
            f"codec id {codec.codec_id!r} is already taken by {plugins.place_of(known)}"
        )
    _codecs[codec.codec_id] = codec
    return codec


def codec_ids() -> list[str]:
    """Return the sorted ids of all codecs, including plug-ins, which are not imported."""
    return sorted(_codecs.keys() | {point.name for point in plugins.codec_entry_points()})


def usable_codecs() -> tuple[list[type[Codec]], list[str]]:
    """Import all plug-ins; return the codecs sorted by id, and a sentence for each plug-in that cannot be used."""
    problems = [_adopt(point) for point in plugins.codec_entry_points()]
    return [_codecs[codec_id] for codec_id in sorted(_codecs)], [p for p in problems if p]


def get(codec_id: str) -> type[Codec]:
    """Return the codec class registered under ``codec_id``.

    A plug-in is imported when it is first requested. A plug-in whose id another codec has is ignored, with one
    warning on the logger ``tersor``.

    Raises:
        UnknownCodecError: no codec has this id, which may be of any type, or the plug-in that offers it cannot be
            used; the message says why.
    """
    # unhashable values such as lists cannot be looked up
    if not isinstance(codec_id, str):
        raise _unknown(codec_id)
    if codec_id in _codecs:
        _warn_of_taken_ids()
        return _codecs[codec_id]
    problems = [
        problem for point in plugins.codec_entry_points(codec_id) if (problem := _adopt(point))
    ]
    if codec_id not in _codecs:
        raise UnknownCodecError(problems[0]) if problems else _unknown(codec_id)
    for problem in problems:
        _warn(problem)
    return _codecs[codec_id]


def _unknown(codec_id: object) -> UnknownCodecError:
    return UnknownCodecError(f"unknown codec {codec_id!r}; known are {', '.join(codec_ids())}")


def _adopt(point: EntryPoint) -> str:
    """Register the codec of a plug-in if necessary; return why it cannot be used, or an empty string."""
    taken = _taken(point)
    if taken or point.name in _codecs:
        return taken
    codec, fault = plugins.load(point)
    if fault:
        return plugins.unusable(point, fault)
    register(codec)
    return ""


def _taken(point: EntryPoint) -> str:
    """Return a sentence if another class has the id of a plug-in; empty if none has."""
    known = _codecs.get(point.name)
    if known is None or plugins.refers_to(point, known):
        return ""
    return plugins.unusable(point, f"its id is taken by {plugins.place_of(known)}")


@cache
def _warn_of_taken_ids() -> None:
    """Warn of plug-ins whose ids are taken, once per process: scanning the installed packages takes about 10 ms."""
    for point in plugins.codec_entry_points():
        problem = _taken(point)
        if problem:
            _warn(problem)


@cache
def _warn(problem: str) -> None:
    """Log a problem once per process."""
    _log.warning(problem)


_WIDE_BOUND: Final = (
    "a relative bound is a fraction of the range of a tensor, and 1 or more lets every value decode to anything in it; for 5 % "
    "write Bound.relative(0.05)"
)


def create(codec_id: str, *, device: Any = None, **spec: Any) -> Codec:
    """Build a codec from its id and options.

    ``device`` is a ``torch.device`` or its name. With it, options that are not given default to the fastest choice
    for that device: ``rows`` uses ``entropy="ans"`` on CUDA. A relative bound of 1 or more is allowed, and the logger
    ``tersor`` warns of it once.

    Raises:
        UnknownCodecError: no codec of that id is installed.
        SpecError: an option is missing, unknown or invalid, or ``device`` names no device.

    Example:
        >>> from tersor import Bound
        >>> create("flat", bound=Bound.absolute(0.5)).to_config()["bound"]
        {'absolute': 0.5}
    """
    bound = spec.get("bound")
    if isinstance(bound, Bound) and bound.value >= 1 and bound.kind == "relative":
        _warn(_WIDE_BOUND)
    return made(codec_id, device=device, **spec)


def made(codec_id: str, *, device: Any = None, **spec: Any) -> Codec:
    """Build a codec as ``create`` does, without a warning of a wide bound, for callers that give their own."""
    codec = get(codec_id)
    codec.check_options(spec)
    if device is not None:
        spec = {**codec.options_on(_device_of(device)), **spec}
    _check_complete(codec, spec)
    try:
        return codec(**spec)
    except TersorError:
        raise
    # raised by a codec's own checks when they compare a value of an unexpected type
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"codec {codec_id!r} cannot take such a value of {' or '.join(spec)} ({error}); "
            "'tersor codecs' shows what options look like"
        ) from error


def _device_of(device: object) -> torch.device:
    if isinstance(device, str | int | torch.device) and not isinstance(device, bool):
        # torch's own sentence names all devices that it has ever known
        with suppress(RuntimeError):
            return torch.device(device)
    raise SpecError(f"device must be a torch.device or its name, as 'cuda', not {device!r}")


def _check_complete(codec: type[Codec], spec: Mapping[str, Any]) -> None:
    """Raise ``SpecError`` if an option without a default is missing."""
    for option in fields(codec):
        has_default = option.default is not MISSING or option.default_factory is not MISSING
        if has_default or not option.init or option.name in spec:
            continue
        if option.name == "bound":
            raise SpecError(
                f"codec {codec.codec_id!r} needs bound=Bound.absolute(e) or Bound.relative(r); "
                "use codec='raw' to store values exactly"
            )
        raise SpecError(f"codec {codec.codec_id!r} needs the option {option.name!r}; give it")


def check_is_codec(codec: object) -> None:
    """Raise ``SpecError`` unless ``codec`` is a codec object; an id is not enough."""
    if not isinstance(codec, Codec):
        given = repr(codec) if isinstance(codec, str) else type(codec).__name__
        raise SpecError(f"expected a codec, as tersor.create('raw') makes one, not {given}")


def from_config(config: Any) -> Codec:
    """Rebuild a codec from its JSON config.

    Raises:
        UnknownCodecError: no codec of that id is installed.
        UnsupportedVersionError: a newer version of the codec wrote the config.
        SpecError: the config is malformed.
    """
    if not isinstance(config, Mapping) or not isinstance(config.get("id"), str):
        raise SpecError("a codec config must be an object with a string 'id'")
    codec = get(config["id"])
    version = config.get("version")
    if type(version) is not int or version < 1:
        raise SpecError(f"a codec config must have a positive 'version', not {version!r}")
    if version > codec.version:
        raise UnsupportedVersionError(
            f"codec {codec.codec_id!r} version {version} is newer than this tersor "
            f"(which knows {codec.version}); upgrade tersor to read it"
        )
    try:
        return codec.from_config(dict(config))
    except TypeError as error:
        raise SpecError(f"codec {codec.codec_id!r}: {error}") from error
