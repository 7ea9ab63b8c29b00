"""Arrays in checkpoints: ``.pt`` and ``.safetensors``; nothing in them is ever executed."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from tersor.cli.arrays.source import Source, TensorSource, labelled
from tersor.errors import BackendUnavailableError, CorruptDataError, SpecError
from tersor.memory import lacks_memory

# torch raises it for whatever weights_only refuses; taken from there because the module it
# belongs to is banned from this package
_RefusedError: type[Exception] = torch.serialization.pickle.UnpicklingError  # type: ignore[attr-defined]

# torch's reader checks little itself: damaged bytes fail wherever their parts are used
_DAMAGE_ERRORS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    struct.error,
)

METADATA_PREFIX: Final = "safetensors."
"""Begins the keys under which the first array of a ``.tsr`` file keeps the metadata of a
``.safetensors`` file (docs/format.md)."""

_Keys = tuple[Any, ...]


def pt_sources(path: Path) -> tuple[list[Source], list[str]]:
    """Return the tensors of a checkpoint, names joined by dots, and what else is in it.

    Raises:
        SpecError: it holds objects other than tensors, numbers, strings and their containers, or
            two tensors whose keys make the same name.
        CorruptDataError: torch cannot read it.
    """
    loaded = _load(path)
    if isinstance(loaded, torch.Tensor):
        return [TensorSource(path.stem, loaded)], []
    sources: list[Source] = []
    left_out: list[str] = []
    keys_of: dict[str, _Keys] = {}
    for keys, leaf in _leaves(loaded, ()):
        name = ".".join(map(str, keys))
        if isinstance(leaf, torch.Tensor):
            if name in keys_of:
                raise SpecError(
                    f"the keys {_as_typed(keys_of[name])} and {_as_typed(keys)} of '{path}' both "
                    f"make the array name {name!r}; rename one of them"
                )
            keys_of[name] = keys
            sources.append(_tensor_source(name, leaf))
        else:
            left_out.append(f"{name} ({type(leaf).__name__})")
    return sources, left_out


def _load(path: Path) -> Any:
    try:
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError as error:
            # files of torch 1.5 and older cannot be mapped
            if "mmap can only be used" not in str(error):
                raise
            return torch.load(path, map_location="cpu", weights_only=True)
    except _RefusedError as error:
        raise SpecError(
            f"'{path}' holds objects that could run code, or is no checkpoint; save only the "
            "state_dict with torch.save(model.state_dict(), ...)"
        ) from error
    except _DAMAGE_ERRORS as error:
        if lacks_memory(error):
            raise
        raise CorruptDataError(f"'{path}' is not a checkpoint that torch can read") from error


def _as_typed(keys: _Keys) -> str:
    return "".join(f"[{key!r}]" for key in keys)


def _leaves(value: Any, keys: _Keys) -> Iterator[tuple[_Keys, Any]]:
    """Yield everything that is not a container, with the keys that lead to it."""
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if not isinstance(value, Mapping):
        yield keys, value
        return
    for key, part in value.items():
        yield from _leaves(part, (*keys, key))


def _tensor_source(name: str, x: torch.Tensor) -> Source:
    with labelled(f"tensor {name!r}"):
        return TensorSource(name, x)


def safetensors_sources(path: Path) -> tuple[list[Source], dict[str, str]]:
    """Return the tensors of a ``.safetensors`` file, and what it says about itself.

    Raises:
        BackendUnavailableError: the package safetensors is not installed.
        CorruptDataError: the file is damaged.
    """
    safetensors = load_safetensors()
    # it reports a missing or unreadable file in words of its own
    with path.open("rb"):
        pass
    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            names = list(file.keys())
            sources = [_tensor_source(name, file.get_tensor(name)) for name in names]
            return sources, dict(file.metadata() or {})
    except safetensors.SafetensorError as error:
        raise CorruptDataError(f"'{path}' is not a .safetensors file: {error}") from error


def load_safetensors() -> Any:
    """Import the package; raises ``BackendUnavailableError`` where it is missing."""
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise BackendUnavailableError(
            ".safetensors files need the package safetensors, which is not installed; install "
            "tersor[io], or use .pt"
        ) from error
    return safetensors
