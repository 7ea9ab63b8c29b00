"""Arrays in checkpoints, ``.pt`` and ``.safetensors``; no code in them is ever executed."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch

from tersor.cli.arrays.source import Source, TensorSource, labelled
from tersor.errors import BackendUnavailableError, CorruptDataError, SpecError
from tersor.memory import lacks_memory

# torch raises it for anything that weights_only rejects; accessed through torch because importing its
# module is banned in this package
_RefusedError: type[Exception] = torch.serialization.pickle.UnpicklingError  # type: ignore[attr-defined]

# torch's reader validates little, so damaged bytes fail wherever they are used
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
"""Prefix of the keys under which the first array of a ``.tsr`` file stores the metadata of a
``.safetensors`` file (docs/format.md)."""

_Keys = tuple[Any, ...]


def pt_sources(path: Path) -> tuple[list[Source], list[str]]:
    """Return the tensors of a checkpoint, named by their keys joined with dots, and other entries.

    Raises:
        SpecError: it holds objects other than tensors, numbers, strings and containers of them, or two
            tensors whose keys give the same name.
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
            # files of torch 1.5 and older do not support mmap
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
    """Yield everything that is not a container, with its path of keys."""
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
    """Return the tensors of a ``.safetensors`` file, and its metadata.

    Raises:
        BackendUnavailableError: the package safetensors is not installed.
        CorruptDataError: the file is damaged.
    """
    safetensors = load_safetensors()
    # raises OSError for a missing or unreadable file, which the package reports in its own words
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
    """Import the package safetensors; raise ``BackendUnavailableError`` if it is missing."""
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise BackendUnavailableError(
            ".safetensors files need the package safetensors, which is not installed; install "
            "tersor[io], or use .pt"
        ) from error
    return safetensors
