"""Codecs by name. Built-in codecs register by decorator, third-party ones by entry point.

A package offers codecs with ``[project.entry-points."tersor.codecs"]``, one ``name =
"module:Class"`` per codec; they are imported when first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from importlib.metadata import entry_points
from typing import Any, TypeVar

import torch

from tersor.codecs.codec import Codec
from tersor.errors import SpecError, TersorError, UnknownCodecError, UnsupportedVersionError

_codecs: dict[str, type[Codec]] = {}
_CodecType = TypeVar("_CodecType", bound=type[Codec])


def register(codec: _CodecType) -> _CodecType:
    """Class decorator: make the codec known under its ``codec_id``."""
    known = _codecs.get(codec.codec_id)
    if known is not None and _place(known) != _place(codec):
        raise SpecError(f"codec id {codec.codec_id!r} is already taken by {_place(known)}")
    _codecs[codec.codec_id] = codec
    return codec


def _place(codec: type[Codec]) -> str:
    return f"{codec.__module__}.{codec.__qualname__}"


def codec_ids() -> list[str]:
    """Return the ids of all codecs that can be asked for, sorted."""
    return sorted(_codecs.keys() | {point.name for point in entry_points(group="tersor.codecs")})


def get(codec_id: str) -> type[Codec]:
    """Return the codec class registered under ``codec_id``.

    Raises:
        UnknownCodecError: there is none, whatever ``codec_id`` is.
    """
    # a list or a dict cannot even be looked up
    is_name = isinstance(codec_id, str)
    if is_name and codec_id not in _codecs:
        for point in entry_points(group="tersor.codecs", name=codec_id):
            register(point.load())
    if not is_name or codec_id not in _codecs:
        raise UnknownCodecError(f"unknown codec {codec_id!r}; known are {', '.join(codec_ids())}")
    return _codecs[codec_id]


def create(codec_id: str, *, device: Any = None, **spec: Any) -> Codec:
    """Build a codec from its id and options.

    ``device``, a ``torch.device`` or its name, is where the tensors are: an option that is not named
    is then the one that is fast there (``rows`` takes ``entropy="ans"`` on CUDA).

    Raises:
        UnknownCodecError: no codec of that id is installed.
        SpecError: an option is missing, unknown or impossible.

    Example:
        >>> from tersor import Bound
        >>> create("flat", bound=Bound.absolute(0.5)).to_config()["bound"]
        {'absolute': 0.5}
    """
    codec = get(codec_id)
    codec.check_options(spec)
    if device is not None:
        spec = {**codec.options_on(torch.device(device)), **spec}
    _check_complete(codec, spec)
    try:
        return codec(**spec)
    except TersorError:
        raise
    # what a codec's own checks raise when a value has not even the type that they compare with
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"codec {codec_id!r} cannot take such a value of {' or '.join(spec)} ({error}); "
            "'tersor codecs' shows what options look like"
        ) from error


def _check_complete(codec: type[Codec], spec: Mapping[str, Any]) -> None:
    """Raise ``SpecError`` where an option without a default is not given."""
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
    """Raise ``SpecError`` unless ``codec`` is a codec object, which a name is not."""
    if not isinstance(codec, Codec):
        given = repr(codec) if isinstance(codec, str) else type(codec).__name__
        raise SpecError(f"expected a codec, as tersor.create('raw') makes one, not {given}")


def from_config(config: Any) -> Codec:
    """Rebuild a codec from its JSON config.

    Raises:
        UnknownCodecError: no codec of that id is installed.
        UnsupportedVersionError: written by a newer version of the codec.
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
