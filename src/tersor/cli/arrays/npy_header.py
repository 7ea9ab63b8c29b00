"""Reading and writing of ``.npy`` headers, without the values."""

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
    """A parsed ``.npy`` header.

    Attributes:
        info: shape and dtype of the tensor.
        dtype: stored dtype, including byte order.
        fortran_order: True if the first axis varies fastest.
        nbytes: size of the header; the values follow it.
    """

    info: TensorInfo
    dtype: np.dtype[Any]
    fortran_order: bool
    nbytes: int


def read_npy_header(stream: BinaryIO, label: str) -> NpyHeader:
    """Read the header at the stream's position; ``label`` names the file in errors.

    Raises:
        CorruptDataError: the bytes are not a valid ``.npy`` header.
        SpecError: the array holds Python objects, fields or another dtype that torch lacks, or has a
            shape that no ``.tsr`` file can hold.
    """
    start = stream.tell()
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream)
        else:
            # 3.0 differs from 2.0 only in the encoding of field names, and fields are rejected below
            shape, fortran_order, dtype = np.lib.format.read_array_header_2_0(stream)
    # errors that numpy's parser raises for malformed headers
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
