"""Reading of container files; everything is checked before it is decoded."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Self, cast

import torch

from tersor.codecs.arguments import checked_out, copy_if_strided
from tersor.codecs.packed import Packed
from tersor.container.header import (
    PREAMBLE,
    SECTION,
    TRAILER,
    check_end,
    check_preamble,
    parse_table,
    parse_trailer,
)
from tersor.container.index import ArrayEntry, parse_index
from tersor.errors import (
    CorruptDataError,
    MemoryLimitError,
    SpecError,
    UnknownCodecError,
    UnsupportedVersionError,
)
from tersor.kernels.batch.encoded_list import EncodedList, finish_decoding
from tersor.memory import check_fits, check_limit, raises_memory_limit
from tersor.raw_bytes import checksum_of, padded

_ABOUT_THE_FILE = (CorruptDataError, MemoryLimitError, UnknownCodecError, UnsupportedVersionError)
_CPU = torch.device("cpu")


class Reader:
    """An open container file; opening reads only preamble, section table, index and trailer.

    A reader may be used from several threads. A reader of a path may also be used in processes forked
    later. Besides its results, it holds the index and one encoded chunk at a time in memory.

    Args:
        source: a path; or a binary stream, read from its position to its end and not closed. A
            stream that cannot seek is first copied to an unnamed temporary file.
        max_nbytes: most bytes that one call may take for values and encoded bytes; by default the
            free memory of the machine. A few kilobytes of a file can expand to many gigabytes of
            values. The working memory of a codec comes on top, up to five times a chunk.
        allow_absent: open the file even if the codecs of some arrays are not installed, or only in
            an older version. ``arrays`` describes these arrays, and reading them raises.

    Raises:
        CorruptDataError: not a tersor file, cut short, or altered.
        UnsupportedVersionError: written by a newer format or codec version.
        UnknownCodecError: an array needs a codec that is not installed.
        MemoryLimitError: the table of the file is larger than ``max_nbytes``.

    Every such message begins with the path, if one was given. A stream positioned past its end raises
    ``SpecError``.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | BinaryIO,
        *,
        max_nbytes: int | None = None,
        allow_absent: bool = False,
    ) -> None:
        check_limit(max_nbytes)
        self._max_nbytes = max_nbytes
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._label = f"'{source}': " if isinstance(source, str | os.PathLike) else ""
        with ExitStack() as on_error, self._named():
            on_error.callback(self._stack.close)
            # a stream passed in may be anything, such as one that decompresses a file
            self._is_own = isinstance(source, str | os.PathLike)
            self._file = self._open(source)
            self._start = self._checked_start()
            self._entries = self._read_index(allow_absent)
            on_error.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files that the reader opened itself; tensors already read stay valid."""
        self._stack.close()

    def __repr__(self) -> str:
        """Return the name of the file and the number of its arrays."""
        of = self._label.rstrip(": ") or "a stream"
        return f"Reader({of}, {len(self._entries)} array{'s' * (len(self._entries) != 1)})"

    @property
    def names(self) -> list[str]:
        """Names of the arrays, in file order."""
        return list(self._entries)

    @property
    def arrays(self) -> Mapping[str, ArrayEntry]:
        """The index entry of each array, by name, in file order."""
        return MappingProxyType(self._entries)

    @raises_memory_limit
    def read(self, name: str, out: torch.Tensor | None = None) -> torch.Tensor:
        """Decode one array into ``out`` (same shape and dtype, on the CPU) or into a new tensor.

        Raises:
            SpecError: no such array, or ``out`` does not match it.
            CorruptDataError: a chunk is damaged; ``out`` is then only partly written.
            MemoryLimitError: the values are larger than ``max_nbytes``; nothing was allocated.
        """
        entry = self._entry(name)
        is_new = out is None or not out.is_contiguous()
        nbytes = entry.sections.largest_nbytes + (entry.info.nbytes if is_new else 0)
        way_out = "read it chunk by chunk with iter_chunks, or "
        self._check_fits(nbytes, f"array {name!r}", way_out)
        target = checked_out(out, entry.info, _CPU)
        flat = target.view(-1)
        for index, chunk in enumerate(entry.plan):
            self._decode(entry, index, flat[chunk.start : chunk.stop].view(chunk.shape))
        return target if out is None else copy_if_strided(target, out)

    @raises_memory_limit
    def read_chunk(self, name: str, index: int) -> torch.Tensor:
        """Decode one chunk: values ``[start, stop)`` of ``arrays[name].plan[index]``.

        Raises:
            SpecError: no such array or chunk.
            CorruptDataError: the chunk is damaged.
            MemoryLimitError: the chunk is larger than ``max_nbytes``; nothing was allocated.
        """
        entry = self._entry(name)
        if not 0 <= index < len(entry.sections):
            raise SpecError(
                f"array {name!r} has chunks 0 to {len(entry.sections) - 1}, there is no {index}"
            )
        chunk = entry.plan[index]
        values_nbytes = (chunk.stop - chunk.start) * entry.info.dtype.itemsize
        nbytes = values_nbytes + entry.sections[index].nbytes
        self._check_fits(nbytes, f"chunk {index} of array {name!r}")
        out = torch.empty(chunk.shape, dtype=entry.info.dtype, device="cpu")
        self._decode(entry, index, out)
        return out

    def iter_chunks(self, name: str) -> Iterator[torch.Tensor]:
        """Decode the chunks of one array in order, holding one at a time."""
        return (self.read_chunk(name, index) for index in range(len(self._entry(name).sections)))

    @raises_memory_limit
    def read_packed(self, name: str) -> Packed:
        """Return one array without decoding it; its checksums are verified."""
        entry = self._entry(name)
        self._check_fits(entry.nbytes, f"array {name!r}, compressed as it is,")
        with self._named():
            payloads = tuple(self._payload(entry, index) for index in range(len(entry.sections)))
        return Packed(
            entry.info, entry.codec, payloads, entry.chunk_values, entry.error_bound, entry.reason
        )

    @raises_memory_limit
    def verify(self) -> None:
        """Read all payloads once and verify their checksums; decodes nothing.

        Raises:
            CorruptDataError: a chunk is damaged; the message names the first one and its array.
        """
        with self._named():
            for entry in self._entries.values():
                self._check_fits(entry.sections.largest_nbytes, f"array {entry.name!r}")
                for index in range(len(entry.sections)):
                    self._payload(entry, index)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Prefix the messages of errors about the file with its path, once."""
        try:
            yield
        except _ABOUT_THE_FILE as error:
            if str(error).startswith(self._label):
                raise
            raise type(error)(f"{self._label}{error}") from error

    def _check_fits(self, nbytes: int, what: str, way_out: str = "") -> None:
        with self._named():
            check_fits(nbytes, self._max_nbytes, what, way_out)

    def _open(self, source: str | os.PathLike[str] | BinaryIO) -> io.BufferedIOBase:
        if isinstance(source, str | os.PathLike):
            source = Path(source).open("rb")  # noqa: SIM115 (the stack closes it)
            self._stack.enter_context(source)
        if not source.seekable():
            spool = tempfile.TemporaryFile()  # noqa: SIM115 (the stack closes it)
            self._stack.enter_context(spool)
            shutil.copyfileobj(source, spool)
            spool.seek(0)
            source = cast("BinaryIO", spool)
        # every binary stream of the standard library has readinto, which BinaryIO leaves out
        return cast("io.BufferedIOBase", source)

    def _checked_start(self) -> int:
        start, end = self._file.tell(), self._file.seek(0, os.SEEK_END)
        if start > end:
            raise SpecError(
                f"the stream stands at {start}, behind its end at {end}; seek to where the file "
                "begins, as with stream.seek(0)"
            )
        return start

    def _read_index(self, allow_absent: bool) -> dict[str, ArrayEntry]:
        file_nbytes = self._file.seek(0, os.SEEK_END) - self._start
        preamble = self._read_bytes(0, min(file_nbytes, PREAMBLE.size))
        check_preamble(preamble)
        if file_nbytes < PREAMBLE.size + TRAILER.size:
            raise CorruptDataError("the file is cut short: it has no trailer")
        trailer = self._read_bytes(file_nbytes - TRAILER.size, TRAILER.size)
        parsed = parse_trailer(trailer, file_nbytes)
        table_nbytes = parsed.num_sections * SECTION.size
        self._check_fits(table_nbytes + parsed.index_nbytes, "the table of the file")
        table = self._read_bytes(parsed.table_offset, table_nbytes)
        index = self._read_bytes(parsed.table_offset + table_nbytes, parsed.index_nbytes)
        check_end(preamble, table, index, trailer)
        sections = parse_table(table, parsed.table_offset)
        return parse_index(index, sections, allow_absent=allow_absent)

    def _entry(self, name: str) -> ArrayEntry:
        if name not in self._entries:
            known = ", ".join(map(repr, self._entries)) or "no arrays"
            raise SpecError(f"there is no array named {name!r}; the file has {known}")
        return self._entries[name]

    def _decode(self, entry: ArrayEntry, index: int, out: torch.Tensor) -> None:
        with self._named():
            payload = self._payload(entry, index)
            try:
                undecoded = entry.codec.decode(EncodedList.apart([payload]), [out])
                finish_decoding(undecoded, [payload], [out])
            except CorruptDataError as error:
                raise CorruptDataError(f"array {entry.name!r}, chunk {index}: {error}") from error

    def _payload(self, entry: ArrayEntry, index: int) -> torch.Tensor:
        """Return one section, verified, as a uint8 tensor that nothing else references."""
        section = entry.sections[index]
        data = self._read_tensor(section.offset, padded(section.nbytes))
        payload, padding = data[: section.nbytes], data[section.nbytes :]
        damage = "its padding is not zero" if padding.any() else ""
        if checksum_of(payload.numpy().data) != section.checksum:
            damage = "its checksum does not match"
        if damage:
            raise CorruptDataError(f"array {entry.name!r}, chunk {index} is damaged: {damage}")
        return payload

    def _read_bytes(self, offset: int, nbytes: int) -> bytes:
        return self._read_tensor(offset, nbytes).numpy().tobytes()

    def _read_tensor(self, offset: int, nbytes: int) -> torch.Tensor:
        # Read rather than mapped: the bytes decoded must be those that were checked, even if another
        # process writes to the file, and a file truncated meanwhile must raise instead of SIGBUS.
        data = torch.empty(nbytes, dtype=torch.uint8, device="cpu")
        view, num_read = data.numpy().data, 0
        while num_read < nbytes:
            new = self._read_into(view[num_read:], self._start + offset + num_read)
            if not new:
                raise CorruptDataError("the file became shorter while it was read")
            num_read += new
        return data

    def _read_into(self, view: memoryview, offset: int) -> int:
        """Read bytes of the file into ``view``; return how many, possibly fewer than its size."""
        if self._is_own and hasattr(os, "preadv"):
            # a file position would be shared with forked processes, such as DataLoader workers
            return os.preadv(self._file.fileno(), [view], offset)
        with self._lock:
            self._file.seek(offset)
            return self._file.readinto(view) or 0


def loads(data: bytes | bytearray | memoryview) -> Packed:
    """Return the array of a container file that holds exactly one, as written by ``dumps``.

    Raises:
        SpecError: ``data`` is not bytes, or the file is valid but does not hold exactly one array.
        CorruptDataError: the data is damaged; the other errors of ``Reader`` are raised as well.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise SpecError(
            f"loads takes the bytes that dumps returned, not {type(data).__name__}; "
            "open a file with tersor.load(path)"
        )
    with Reader(io.BytesIO(data)) as reader:
        if len(reader.names) != 1:
            raise SpecError(f"the data holds {len(reader.names)} arrays; open it with Reader")
        return reader.read_packed(reader.names[0])
