"""The header of a ``.npy`` file, read and written without touching the values."""

from __future__ import annotations

import tokenize
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import numpy as np
import torch

from tersor.api import as_tensor
from tersor.cli.arrays.source import labelled
from tersor.errors import CorruptDataError, SpecError
from tersor.types import DTYPE_NAMES, TensorInfo

_PARSER_ERRORS: Final = (
    ValueError,
    TypeError,
    KeyError,
    SyntaxError,
    tokenize.TokenError,
    RecursionError,
    MemoryError,
)


@dataclass(frozen=True, slots=True)
class NpyHeader:
    """What a ``.npy`` file says about its array.

    Attributes:
        info: shape and dtype.
        dtype: the values as they are stored, byte order included.
        fortran_order: the first axis varies fastest.
        nbytes: size of the header, after which the values begin.
    """

    info: TensorInfo
    dtype: np.dtype[Any]
    fortran_order: bool
    nbytes: int


def read_npy_header(stream: BinaryIO, label: str) -> NpyHeader:
    """Read the header at the stream's position; ``label`` names the file in errors.

    Raises:
        CorruptDataError: these are not the first bytes of a ``.npy`` file.
        SpecError: the array holds Python objects, fields or another dtype without a tensor, or has
            a shape that no ``.tsr`` file can hold.
    """
    start = stream.tell()
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream)
        else:
            # 3.0 differs from 2.0 in the names of fields only, and no fields are taken here
            shape, fortran_order, dtype = np.lib.format.read_array_header_2_0(stream)
    # what numpy's parser lets through for headers that are no Python literal
    except _PARSER_ERRORS as error:
        raise CorruptDataError(
            f"{label} is not a .npy file; describe raw binary with --dtype and --shape"
        ) from error
    if any(size < 0 for size in shape):
        raise CorruptDataError(f"{label} has the impossible shape {shape}")
    if dtype.hasobject:
        raise SpecError(
            f"{label} holds Python objects, which are never unpickled here; save it as float32"
        )
    with labelled(label):
        info = TensorInfo(tuple(map(int, shape)), as_tensor(np.zeros(0, dtype)).dtype)
        info.check_storable()
    return NpyHeader(info, dtype, fortran_order, stream.tell() - start)


def write_npy_header(stream: BinaryIO, info: TensorInfo) -> None:
    """Write the header of a C-ordered array.

    Raises:
        SpecError: numpy has no such dtype.
    """
    header = {
        "descr": np.lib.format.dtype_to_descr(numpy_dtype(info.dtype)),
        "fortran_order": False,
        "shape": info.shape,
    }
    np.lib.format.write_array_header_1_0(stream, header)


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """Return the numpy dtype of a tensor's values; raises ``SpecError`` if there is none."""
    try:
        return torch.zeros(0, dtype=dtype).numpy().dtype
    except TypeError as error:
        way_out = (
            "convert with --dtype f32, or write to .pt or .safetensors"
            if dtype == torch.bfloat16
            else "write to .pt or .safetensors, or use --raw"
        )
        raise SpecError(f"numpy has no dtype for {DTYPE_NAMES[dtype]}: {way_out}") from error
