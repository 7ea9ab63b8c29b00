"""Writing of container files in one pass and bounded memory, to a path or a binary stream."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import BinaryIO, Final, Self

import torch

from tersor.atomic import atomic_write
from tersor.chunks import ChunkPlan
from tersor.codecs.arguments import check_chunk_values, materialised
from tersor.codecs.auto import chosen
from tersor.codecs.codec import Codec
from tersor.codecs.packed import Packed
from tersor.codecs.registry import check_is_codec
from tersor.container.header import ALIGNMENT, Section, pack_end, pack_preamble
from tersor.container.index import array_entry, fits_index, join_index, num_marks
from tersor.errors import SpecError
from tersor.memory import raises_memory_limit
from tersor.raw_bytes import checksum_of
from tersor.types import TensorInfo, checked_error_bound

FILE_CHUNK_VALUES: Final = 2**22
"""Values per chunk in files: 16 MiB of float32, which bounds the memory of writers and readers."""


class Writer:
    r"""Writes named arrays one after the other; the same calls give the same bytes.

    Args:
        target: a path, written atomically (see ``atomic_write``), or a binary stream. A stream is
            not repositioned or closed; its ``write`` must return the number of bytes written.

    Example:
        >>> import io
        >>> from tersor.codecs.raw import Raw
        >>> stream = io.BytesIO()
        >>> with Writer(stream) as writer:
        ...     writer.add("weight", torch.zeros(3), Raw())
        >>> stream.getvalue()[:8]
        b'\x89tersor\n'
    """

    def __init__(self, target: str | os.PathLike[str] | BinaryIO) -> None:
        self._stack = ExitStack()
        self._target = target
        if isinstance(target, str | os.PathLike):
            self._stream = self._stack.enter_context(atomic_write(target))
        else:
            self._stream = target
        self._offset = 0
        self._sections: list[Section] = []
        self._arrays: dict[str, bytes] = {}
        self._index_nbytes = len(join_index([]))
        self._index_marks = num_marks(join_index([]))
        self._closed = False
        self._half_array: str | None = None
        self._write(pack_preamble())

    def __repr__(self) -> str:
        """Return the target, how many arrays it has got, and whether it is complete."""
        of = repr(str(self._target)) if isinstance(self._target, str | os.PathLike) else "a stream"
        count = f"{len(self._arrays)} array{'s' * (len(self._arrays) != 1)}"
        return f"Writer({of}, {count}{', closed' * self._closed})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Complete the file, or discard it if the block raised."""
        if error_type is None:
            self.close()
        else:
            self._closed = True
            self._stack.__exit__(error_type, error, traceback)

    def close(self) -> None:
        """Write the index and, for a path, give the file its name; later calls do nothing.

        Raises:
            SpecError: an exception left an array half written; a path is then not created.
        """
        if self._closed:
            return
        self._closed = True
        with self._stack:
            if self._half_array is not None:
                raise SpecError(
                    f"array {self._half_array!r} failed while it was written, so the file cannot "
                    "be completed; write it again from the start"
                )
            index = join_index(list(self._arrays.values()))
            self._write(pack_end(self._offset, self._sections, index))
            self._stream.flush()

    @raises_memory_limit
    def add(
        self,
        name: str,
        x: torch.Tensor,
        codec: Codec,
        metadata: Mapping[str, str] | None = None,
        *,
        chunk_values: int = FILE_CHUNK_VALUES,
        reason: str = "",
    ) -> None:
        """Encode and write a tensor, one chunk at a time; ``x`` is never changed.

        A non-contiguous ``x`` is first copied as a whole.

        Raises:
            SpecError: the name is taken, or the codec cannot encode such a tensor.
        """
        info = TensorInfo.of(x)
        check_is_codec(codec)
        codec.check_supported(info.dtype)
        x = materialised(x)
        flat = x.view(-1)
        check_chunk_values(chunk_values)
        plan = ChunkPlan(info.shape, chunk_values)
        error_bound = codec.resolve_bound(x)
        # choose on a chunk in its encoded shape: a huge slice is cut into flat runs
        middle = plan[len(plan) // 2]
        part = flat[middle.start : middle.stop].view(middle.shape)
        codec, why = chosen(codec, part, error_bound)
        self.add_chunks(
            name,
            info,
            codec,
            error_bound if codec.takes_bound() else None,
            (flat[chunk.start : chunk.stop] for chunk in plan),
            chunk_values,
            metadata=metadata,
            reason=reason or why,
        )

    @raises_memory_limit
    def add_chunks(
        self,
        name: str,
        info: TensorInfo,
        codec: Codec,
        error_bound: float | None,
        chunks: Iterable[torch.Tensor],
        chunk_values: int = FILE_CHUNK_VALUES,
        *,
        metadata: Mapping[str, str] | None = None,
        reason: str = "",
    ) -> None:
        """Encode and write an array that need not fit in memory as a whole.

        Args:
            name: unique in the file.
            info: shape and dtype of the whole array.
            codec: encodes every chunk.
            error_bound: the absolute error bound of the whole array, as returned by
                ``codec.resolve_bound``; None for codecs that promise a size.
            chunks: the values of each chunk of ``ChunkPlan(info.shape, chunk_values)``, in order,
                in any shape.
            chunk_values: most values per chunk.
            metadata: the user's own strings.
            reason: why this codec was chosen.

        Raises:
            SpecError: the name is taken, the codec cannot encode such an array, or the chunks do
                not match the plan. After a mismatch the file cannot be completed.
        """
        check_is_codec(codec)
        codec.check_supported(info.dtype)
        error_bound = _checked_promise(error_bound, codec)
        check_chunk_values(chunk_values)
        checked = _checked_chunks(name, info, ChunkPlan(info.shape, chunk_values), chunks)
        payloads = (codec.pack_chunk(x, error_bound) for x in checked)
        self._add(name, info, codec, chunk_values, error_bound, reason, metadata, payloads)

    @raises_memory_limit
    def add_packed(
        self, name: str, packed: Packed, metadata: Mapping[str, str] | None = None
    ) -> None:
        """Write a tensor that is already compressed, with its existing chunks.

        Raises:
            SpecError: the name is taken, or the payloads do not match the shape.
        """
        if not isinstance(packed, Packed):
            raise SpecError(
                f"expected what compress returned, not {type(packed).__name__}; compress it first"
            )
        num_chunks = len(ChunkPlan(packed.info.shape, packed.chunk_values))
        if num_chunks != len(packed.payloads):
            raise SpecError(f"{num_chunks} payloads expected, {len(packed.payloads)} given")
        error_bound = packed.error_bound if packed.codec.takes_bound() else None
        about = packed.info, packed.codec, packed.chunk_values, error_bound, packed.reason
        self._add(name, *about, metadata, packed.payloads)

    def _add(
        self,
        name: str,
        info: TensorInfo,
        codec: Codec,
        chunk_values: int,
        error_bound: float | None,
        reason: str,
        metadata: Mapping[str, str] | None,
        payloads: Iterable[torch.Tensor],
    ) -> None:
        name, reason, metadata = _checked_text(name), _checked_text(reason), _checked(metadata)
        entry = array_entry(name, info, codec, chunk_values, error_bound, reason, metadata)
        if self._closed or self._half_array is not None:
            raise SpecError("this writer is closed or failed before; make a new one")
        if name in self._arrays:
            raise SpecError(f"the file already has an array named {name!r}; choose another name")
        index_nbytes = self._index_nbytes + len(entry) + 1
        index_marks = self._index_marks + num_marks(entry) + 1
        if not fits_index(index_nbytes, index_marks):
            raise SpecError(
                "the index of one file is limited to 16 MiB and 2**22 values; begin a second file"
            )
        self._half_array = name
        for payload in payloads:
            self._write_section(payload)
        self._arrays[name] = entry
        self._index_nbytes, self._index_marks = index_nbytes, index_marks
        self._half_array = None

    def _write_section(self, payload: torch.Tensor) -> None:
        data = payload.detach().cpu().contiguous().numpy().data
        self._sections.append(Section(self._offset, data.nbytes, checksum_of(data)))
        self._write(data)
        self._write(bytes(-data.nbytes % ALIGNMENT))

    def _write(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        self._offset += rest.nbytes
        # a raw stream, such as an unbuffered pipe, may write only a part
        while rest.nbytes:
            taken = self._stream.write(rest)
            if not taken:
                raise BlockingIOError("the stream takes no bytes; open it in blocking mode")
            rest = rest[taken:]


def dumps(packed: Packed) -> bytes:
    """Return the bytes of a container file that holds only ``packed``, under the empty name.

    Raises:
        SpecError: ``packed`` is not a result of ``compress``.
    """
    stream = io.BytesIO()
    with Writer(stream) as writer:
        writer.add_packed("", packed)
    return stream.getvalue()


def _checked_chunks(
    name: str, info: TensorInfo, plan: ChunkPlan, chunks: Iterable[torch.Tensor]
) -> Iterator[torch.Tensor]:
    """Yield the chunks in the shapes of the plan; raise ``SpecError`` at the first mismatch."""
    given = iter(chunks)
    for index, chunk in enumerate(plan):
        x = next(given, None)
        if x is None:
            raise SpecError(f"array {name!r} has {len(plan)} chunks, only {index} given")
        found = TensorInfo.of(x)
        if found.numel != chunk.stop - chunk.start or found.dtype != info.dtype:
            raise SpecError(
                f"chunk {index} of array {name!r} must be {info.dtype} with "
                f"{chunk.stop - chunk.start} values, not {found.dtype} with {found.numel}"
            )
        yield materialised(x).view(chunk.shape)
    if next(given, None) is not None:
        raise SpecError(f"array {name!r} has {len(plan)} chunks, but more were given")


def _checked_promise(error_bound: float | None, codec: Codec) -> float | None:
    if (error_bound is not None) != codec.takes_bound():
        promise = "an error bound" if codec.takes_bound() else "no error bound"
        raise SpecError(f"codec {codec.codec_id!r} takes {promise}")
    return None if error_bound is None else checked_error_bound(error_bound)


def _checked_text(text: str) -> str:
    if not isinstance(text, str):
        raise SpecError(f"names and metadata must be strings, not {text!r}; convert it first")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SpecError(f"{text!r} cannot be written as UTF-8; choose another text") from error
    return text


def _checked(metadata: Mapping[str, str] | None) -> Mapping[str, str]:
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise SpecError(
            f"metadata must be a dict of strings, as {{'unit': 'K'}}, not {type(metadata).__name__}"
        )
    return {_checked_text(key): _checked_text(text) for key, text in metadata.items()}
