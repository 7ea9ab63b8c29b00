"""Arrays in memory-mapped files: ``.npy`` and raw binary."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import torch

from tersor.chunks import Chunk, ChunkPlan
from tersor.cli.arrays.npy_header import read_npy_header
from tersor.cli.arrays.source import Source, labelled
from tersor.errors import CorruptDataError, SpecError
from tersor.types import DTYPE_NAMES, TensorInfo

_GATHER_NBYTES: Final = 128 * 2**20
"""Bytes of a Fortran-ordered array collected per pass over its file. A chunk of leading slices has a few
values on every page, so fewer passes are worth the memory."""

_BLOCK_NBYTES: Final = 64 * 2**20


class MappedFile:
    """Memory map of a file from its current position on, whose pages can be released after use."""

    def __init__(self, file: BinaryIO) -> None:
        self._start = file.tell()
        self._nbytes = os.fstat(file.fileno()).st_size
        # an empty file cannot be mapped
        self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self._nbytes else None
        self._bytes = np.frombuffer(self._map if self._map is not None else b"", np.uint8)

    @property
    def nbytes(self) -> int:
        """Number of bytes from the initial position to the end."""
        return max(0, self._nbytes - self._start)

    def view(self, start: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return a range of bytes as a read-only view."""
        return self._bytes[self._start + start : self._start + start + nbytes]

    def release(self, start: int, nbytes: int) -> None:
        """Drop the pages of a range from memory; they can still be read again."""
        advise = getattr(self._map, "madvise", None)
        if advise is None or not hasattr(mmap, "MADV_DONTNEED"):
            return
        first = (self._start + start) // mmap.PAGESIZE * mmap.PAGESIZE
        last = min(self._nbytes, self._start + start + nbytes)
        if last > first:
            advise(mmap.MADV_DONTNEED, first, last - first)


class MappedSource(Source):
    """A C-ordered array in a mapped file, of any byte order."""

    def __init__(
        self, name: str, info: TensorInfo, file: MappedFile, offset: int, *, swapped: bool = False
    ) -> None:
        super().__init__(name, info)
        self._file, self._offset, self._swapped = file, offset, swapped

    def chunk(self, chunk: Chunk) -> torch.Tensor:
        """See ``Source.chunk``; returns a copy, so that the file's pages can be released at once."""
        values = torch.empty(chunk.stop - chunk.start, dtype=self.info.dtype)
        start = self._offset + chunk.start * self.info.dtype.itemsize
        target = values.view(torch.uint8).numpy()
        target[:] = self._file.view(start, target.size)
        self._file.release(start, target.size)
        if self._swapped:
            values.numpy().byteswap(inplace=True)
        return values


class FortranSource(Source):
    """An array in a mapped file whose first axis varies fastest."""

    def __init__(
        self, name: str, info: TensorInfo, file: MappedFile, offset: int, dtype: np.dtype[Any]
    ) -> None:
        super().__init__(name, info)
        self._file, self._offset = file, offset
        stored = file.view(offset, info.nbytes)
        self._array = stored.view(dtype).reshape(info.shape, order="F")

    def chunk(self, chunk: Chunk) -> torch.Tensor:
        """See ``Source.chunk``."""
        values = np.ascontiguousarray(self._array.flat[chunk.start : chunk.stop])
        self._file.release(self._offset, self.info.nbytes)
        return torch.from_numpy(_native(values))

    def chunks(self, plan: ChunkPlan) -> Iterator[torch.Tensor]:
        """See ``Source.chunks``; several chunks are collected per pass over the file."""
        slice_values = math.prod(self.info.shape[1:])
        if len(plan) == 1 or len(plan[0].shape) != len(self.info.shape):
            yield from super().chunks(plan)
            return
        per_chunk = plan[0].shape[0]
        slice_nbytes = slice_values * self.info.dtype.itemsize
        per_pass = max(1, _GATHER_NBYTES // (slice_nbytes * per_chunk)) * per_chunk
        for start in range(0, self.info.shape[0], per_pass):
            values = self._gather(start, min(self.info.shape[0], start + per_pass))
            yield from values.split(per_chunk * slice_values)

    def _gather(self, start: int, stop: int) -> torch.Tensor:
        """Collect leading slices in one sequential pass over the file."""
        shape = self.info.shape
        values = np.empty((stop - start, *shape[1:]), self._array.dtype)
        # each index of the last axis is one contiguous run of bytes in the file
        run_nbytes = math.prod(shape[:-1]) * self.info.dtype.itemsize
        block = max(1, _BLOCK_NBYTES // run_nbytes)
        for first in range(0, shape[-1], block):
            part = slice(first, first + block)
            values[..., part] = self._array[start:stop, ..., part]
            self._file.release(self._offset + first * run_nbytes, block * run_nbytes)
        return torch.from_numpy(_native(values)).view(-1)


def _native(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def npy_source(name: str, file: BinaryIO, label: str) -> Source:
    """Open the ``.npy`` array that extends from the file's position to its end.

    Raises:
        CorruptDataError: the data is not in ``.npy`` format, is cut short, or has trailing bytes.
        SpecError: the array cannot be stored.
    """
    mapped = MappedFile(file)
    header = read_npy_header(file, label)
    info = header.info
    if mapped.nbytes < header.nbytes + info.nbytes:
        raise CorruptDataError(
            f"{label} is cut short: {info.nbytes} bytes of values expected, "
            f"{max(0, mapped.nbytes - header.nbytes)} present"
        )
    if mapped.nbytes > header.nbytes + info.nbytes:
        raise CorruptDataError(
            f"{label} goes on for {mapped.nbytes - header.nbytes - info.nbytes} bytes after its "
            "array; save one array per file"
        )
    if header.fortran_order and len(info.shape) > 1 and info.numel:
        return FortranSource(name, info, mapped, header.nbytes, header.dtype)
    return MappedSource(name, info, mapped, header.nbytes, swapped=not header.dtype.isnative)


def raw_source(
    name: str, file: BinaryIO, label: str, dtype: torch.dtype, shape: tuple[int, ...] | None
) -> Source:
    """Open raw little-endian values from the file's position on; no shape means one axis.

    Raises:
        SpecError: the size of the file does not match, or no ``.tsr`` file can hold the shape.
    """
    mapped = MappedFile(file)
    if shape is None:
        if mapped.nbytes % dtype.itemsize:
            raise SpecError(
                f"{label} has {mapped.nbytes} bytes, which is no whole number of "
                f"{DTYPE_NAMES[dtype]} values; check --dtype"
            )
        shape = (mapped.nbytes // dtype.itemsize,)
    info = TensorInfo(shape, dtype)
    if info.nbytes != mapped.nbytes:
        raise SpecError(
            f"{label} has {mapped.nbytes} bytes, but {DTYPE_NAMES[dtype]} of shape "
            f"{','.join(map(str, shape))} needs {info.nbytes}; check --dtype and --shape"
        )
    with labelled(label):
        info.check_storable()
    return MappedSource(name, info, mapped, 0)
