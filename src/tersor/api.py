"""The main user functions, for torch and numpy: compress, decompress, save and load."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, overload

import numpy as np
import torch

from tersor.codecs import Codec, Packed, create, get
from tersor.codecs.workspace import pack_within, unpack_within
from tersor.container import Reader, Writer
from tersor.errors import SpecError
from tersor.memory import check_fits, check_limit, raises_memory_limit
from tersor.types import FLOAT_DTYPES, Bound, TensorInfo, check_unmasked


def resolve_codec(
    codec: str | Codec, bound: Bound | None, x: torch.Tensor, **options: Any
) -> Codec:
    """Build the codec that the arguments of ``compress`` select for ``x``'s dtype and device.

    Raises:
        SpecError: a bound is missing, or given to a codec that takes none.
    """
    if isinstance(codec, Codec):
        if bound is not None or options:
            raise SpecError("give bound and options to the codec itself, or name the codec")
        return codec
    kind = get(codec)
    if codec == "auto" and x.dtype not in FLOAT_DTYPES:
        return create("raw")
    kind.check_options(options)
    if bound is not None:
        if not kind.takes_bound():
            raise SpecError(f"codec {codec!r} takes no error bound: leave bound out")
        options["bound"] = bound
    return create(codec, device=x.device, **options)


def as_tensor(x: torch.Tensor | np.ndarray[Any, Any]) -> torch.Tensor:
    """Return ``x`` as a tensor, without a copy if torch can share its memory."""
    if isinstance(x, torch.Tensor):
        return x
    if isinstance(x, Mapping):
        raise SpecError(
            "expected one torch tensor or numpy array, not a dict; write a dict of tensors to a "
            "file with tersor.save(path, {...})"
        )
    check_unmasked(x)
    if not isinstance(x, np.ndarray):
        raise SpecError(f"expected a torch tensor or numpy array, not {type(x).__name__}")
    if x.itemsize == 0:
        raise SpecError(f"values of {x.dtype} take no bytes; give an array of numbers")
    if not x.dtype.isnative:
        x = x.astype(x.dtype.newbyteorder("="))
    if not x.flags.writeable or any(step < 0 or step % x.itemsize for step in x.strides):
        x = x.copy()
    try:
        return torch.from_numpy(x)
    except TypeError as error:
        raise SpecError(f"arrays of {x.dtype} cannot be compressed; convert to float32") from error


@raises_memory_limit
def compress(
    x: torch.Tensor | np.ndarray[Any, Any],
    bound: Bound | None = None,
    *,
    codec: str | Codec = "auto",
    max_workspace_nbytes: int | None = None,
    **options: Any,
) -> Packed:
    """Compress a tensor within a promised error; ``x`` is not changed.

    Args:
        x: any shape and layout. float32, float64, float16 and bfloat16 can be bounded; ``auto``
            stores other dtypes exactly.
        bound: ``Bound.absolute(e)`` or ``Bound.relative(r)``; required by all bounded codecs.
        codec: a codec id (see ``tersor codecs``), a codec object, or ``auto`` to choose by size.
        max_workspace_nbytes: most device memory to take beyond ``x`` and the result; unlimited by default.
            A tensor that would take more is cut into chunks with separate payloads, the same on every
            device; prediction and row deduplication do not cross chunk edges.
        options: further options of the named codec; on CUDA, ``rows`` defaults to ``entropy="ans"``.

    Raises:
        SpecError: the arguments are incompatible, or the limit is too low.
        BackendUnavailableError: the tensor's device or the codec needs a package that is missing.
        MemoryLimitError: there is not enough memory.

    Example:
        >>> packed = compress(torch.linspace(0, 1, 1000), Bound.absolute(0.01))
        >>> bool((decompress(packed) - torch.linspace(0, 1, 1000)).abs().max() <= 0.01)
        True
    """
    tensor = as_tensor(x)
    chosen = resolve_codec(codec, bound, tensor, **options)
    if max_workspace_nbytes is not None:
        return pack_within(chosen, tensor, max_workspace_nbytes)
    return chosen.pack(tensor)


@overload
def decompress(
    packed: Packed,
    out: torch.Tensor | None = None,
    *,
    max_nbytes: int | None = None,
    max_workspace_nbytes: int | None = None,
) -> torch.Tensor: ...
@overload
def decompress(
    packed: Packed,
    out: np.ndarray[Any, Any],
    *,
    max_nbytes: int | None = None,
    max_workspace_nbytes: int | None = None,
) -> np.ndarray[Any, Any]: ...


@raises_memory_limit
def decompress(
    packed: Packed,
    out: torch.Tensor | np.ndarray[Any, Any] | None = None,
    *,
    max_nbytes: int | None = None,
    max_workspace_nbytes: int | None = None,
) -> torch.Tensor | np.ndarray[Any, Any]:
    """Return the tensor with its original dtype and shape, on the device of the payload.

    Args:
        packed: the result of ``compress``.
        out: decode into this tensor or array (same shape and dtype) and return it.
        max_nbytes: most bytes that a new tensor may take; by default, on the CPU, the free memory.
        max_workspace_nbytes: most device memory to take beyond payloads and tensor; unlimited by default.
            Chunks that would together take more are decoded one after the other.

    Raises:
        SpecError: ``out`` does not match, or the workspace limit is too low; the message states the need.
        CorruptDataError: the payload was altered.
        MemoryLimitError: the tensor is larger than ``max_nbytes``; nothing was allocated.
    """
    check_limit(max_nbytes)
    if not isinstance(packed, Packed):
        raise SpecError(f"expected what compress returned, not {type(packed).__name__}; use loads")
    if out is not None and not isinstance(out, torch.Tensor | np.ndarray):
        raise SpecError(f"out must be a torch tensor or numpy array, not {type(out).__name__}")
    if isinstance(out, np.ndarray):
        if not out.flags.writeable:
            raise SpecError("out is read-only; give a writable array")
        target = as_tensor(out)
        _unpack(packed, target, max_workspace_nbytes)
        if not np.shares_memory(target.numpy(), out):
            # torch does not support negative strides or foreign byte order, so ``target`` is a copy
            out[...] = target.numpy()
        return out
    if out is None and (max_nbytes is not None or packed.device.type == "cpu"):
        check_fits(packed.info.nbytes, max_nbytes, "the tensor")
    return _unpack(packed, out, max_workspace_nbytes)


def _unpack(
    packed: Packed, out: torch.Tensor | None, max_workspace_nbytes: int | None
) -> torch.Tensor:
    if max_workspace_nbytes is not None:
        return unpack_within(packed, out, max_workspace_nbytes)
    return packed.codec.unpack(packed, out)


@raises_memory_limit
def save(
    path: str | os.PathLike[str],
    arrays: Mapping[str, torch.Tensor | np.ndarray[Any, Any]],
    bound: Bound | None = None,
    *,
    codec: str | Codec = "auto",
    **options: Any,
) -> None:
    """Write named arrays to a ``.tsr`` file; arguments as in ``compress``.

    With ``auto``, arrays that are not floats are stored exactly. An existing file is replaced
    atomically: it is unchanged until everything is written, and if an error is raised.

    Raises:
        SpecError: the arguments are incompatible, or an entry cannot be stored; the message names it.
        OSError: the file cannot be written; the message names ``path``.
    """
    if not isinstance(arrays, Mapping):
        raise SpecError(
            f"save takes tensors by name, as in tersor.save(path, {{'x': x}}), "
            f"not {type(arrays).__name__}"
        )
    with Writer(path) as writer:
        for name, x in arrays.items():
            tensor = _entry(name, x)
            writer.add(name, tensor, resolve_codec(codec, bound, tensor, **options))


def _entry(name: str, x: torch.Tensor | np.ndarray[Any, Any]) -> torch.Tensor:
    """Return one entry of a dict as a tensor that can be stored; errors name the entry."""
    if isinstance(x, Mapping):
        raise SpecError(
            f"entry {name!r} is a dict, not a tensor; save its entries one by one, as in "
            f"tersor.save(path, {{'{name}.weight': ...}})"
        )
    try:
        tensor = as_tensor(x)
        TensorInfo.of(tensor)
    except SpecError as error:
        raise SpecError(f"entry {name!r}: {error}") from error
    return tensor


def load(path: str | os.PathLike[str], *, max_nbytes: int | None = None) -> dict[str, torch.Tensor]:
    """Read all arrays of a ``.tsr`` file into memory, on the CPU.

    Args:
        path: of the file.
        max_nbytes: most bytes that all arrays together may take; by default the free memory. A few
            kilobytes of a file can expand to many gigabytes of values.

    Raises:
        CorruptDataError: the file is damaged or not a tersor file; the message names it.
        MemoryLimitError: the arrays are larger than ``max_nbytes``; nothing is allocated.
    """
    with Reader(path, max_nbytes=max_nbytes) as reader:
        nbytes = sum(entry.info.nbytes for entry in reader.arrays.values())
        way_out = "read array by array with tersor.Reader, or "
        check_fits(nbytes, max_nbytes, f"what '{path}' holds", way_out)
        return {name: reader.read(name) for name in reader.names}
