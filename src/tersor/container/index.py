"""The index of a container file: one JSON object that describes every array.

The index is untrusted: a shape must fit the bytes present, keys must be exactly the known ones, and
numbers, strings and nesting are limited before anything is built.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import torch

from tersor.chunks import MAX_CHUNK_VALUES, ChunkPlan
from tersor.codecs import registry
from tersor.codecs.arguments import check_payload_size
from tersor.codecs.codec import Codec
from tersor.container.header import MAX_INDEX_NBYTES, SectionTable
from tersor.errors import CorruptDataError, UnknownCodecError, UnsupportedVersionError
from tersor.types import TensorInfo

_KEYS: Final = {
    "name", "codec", "shape", "dtype", "chunk_values", "num_chunks", "error_bound", "reason",
    "metadata",
}  # fmt: skip
MAX_INDEX_MARKS: Final = 2**22
"""Most values in an index, as ``num_marks`` counts them. Lists and objects take 30 times the memory
of their JSON: 16 MiB of them took 728 MB."""
_MARKS: Final = b",:[{"
_QUOTE: Final = ord('"')
_BLOCK_NBYTES: Final = 2**20
_MAX_DEPTH: Final = 16
_MAX_DIGITS: Final = 20
"""Enough for every 64-bit integer; longer ones only cost time."""


@dataclass(frozen=True, slots=True)
class AbsentCodec:
    """The config in a file of a codec that is not installed, or only in an older version."""

    guarantee: ClassVar[None] = None

    config: Mapping[str, Any]
    error: UnknownCodecError | UnsupportedVersionError

    def to_config(self) -> dict[str, Any]:
        """Return the config exactly as in the file."""
        return dict(self.config)


@dataclass(frozen=True, slots=True)
class ArrayEntry:
    """One array of a file: everything known without reading its payloads.

    Attributes:
        name: unique in the file; may be empty.
        info: shape and dtype.
        stored_codec: the codec that wrote the payloads, with its full spec.
        chunk_values: most values per chunk of ``plan``.
        error_bound: the promised absolute error; None for codecs that promise a size instead.
        reason: why this codec was chosen, when ``auto`` chose it.
        metadata: the user's own strings.
        sections: one section per chunk of ``plan``, in order.
    """

    name: str
    info: TensorInfo
    stored_codec: Codec | AbsentCodec
    chunk_values: int
    error_bound: float | None
    reason: str
    metadata: Mapping[str, str]
    sections: SectionTable

    @property
    def codec(self) -> Codec:
        """The codec that wrote the payloads; raises ``UnknownCodecError`` if it is absent."""
        if isinstance(self.stored_codec, AbsentCodec):
            raise self.stored_codec.error
        return self.stored_codec

    @property
    def plan(self) -> ChunkPlan:
        """How the array is cut into chunks."""
        return ChunkPlan(self.info.shape, self.chunk_values)

    @property
    def nbytes(self) -> int:
        """Encoded size in bytes, without padding and index."""
        return self.sections.nbytes

    @property
    def ratio(self) -> float:
        """Original size over encoded size."""
        return self.info.nbytes / max(1, self.nbytes)


def array_entry(
    name: str,
    info: TensorInfo,
    codec: Codec,
    chunk_values: int,
    error_bound: float | None,
    reason: str,
    metadata: Mapping[str, str],
) -> bytes:
    """Return the JSON object of one array; equal arguments give equal bytes.

    Raises:
        SpecError: the shape is one that ``parse_index`` rejects.
    """
    info.check_storable()
    config = {
        **info.to_config(),
        "name": name,
        "codec": codec.to_config(),
        "chunk_values": chunk_values,
        "num_chunks": len(ChunkPlan(info.shape, chunk_values)),
        "error_bound": error_bound,
        "reason": reason,
        "metadata": dict(metadata),
    }
    return json.dumps(
        config, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
    ).encode()


def join_index(arrays: Sequence[bytes]) -> bytes:
    """Return the index of a file made of these arrays."""
    return b'{"arrays":[' + b",".join(arrays) + b"]}"


def num_marks(text: bytes) -> int:
    """Count the characters ``, : [ {`` of a JSON text outside of its strings.

    Every value but the outermost follows one of them, so a text has at most this count plus one values.

    Example:
        >>> num_marks(b'{"a,b": [1, 2]}')
        4
    """
    # without escapes, every remaining quote begins or ends a string
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"")
    is_mark = np.zeros(256, dtype=np.bool_)
    is_mark[list(_MARKS)] = True
    count, in_string = 0, 0
    for start in range(0, len(plain), _BLOCK_NBYTES):
        block = np.frombuffer(plain[start : start + _BLOCK_NBYTES], np.uint8)
        # only the parity of the number of quotes matters, so uint8 may wrap around
        quoted = (np.cumsum(block == _QUOTE, dtype=np.uint8) + np.uint8(in_string)) & 1
        count += int(np.count_nonzero(is_mark[block] & (quoted == 0)))
        in_string = int(quoted[-1])
    return count


def fits_index(nbytes: int, marks: int) -> bool:
    """True if a reader accepts an index of this size and ``num_marks``."""
    return nbytes <= MAX_INDEX_NBYTES and marks <= MAX_INDEX_MARKS


def parse_index(
    index: bytes, sections: SectionTable, *, allow_absent: bool = False
) -> dict[str, ArrayEntry]:
    """Parse the index and assign its sections to every array, in file order.

    Raises:
        CorruptDataError: the index is not one that a writer produces.
        UnknownCodecError: an array's codec is not installed, unless ``allow_absent``.
        UnsupportedVersionError: an array's codec is newer than this tersor, unless ``allow_absent``.
    """
    if not fits_index(len(index), num_marks(index)):
        raise CorruptDataError("the index of the file has more than 16 MiB or 2**22 values")
    parsed = _parse_json(index)
    if not isinstance(parsed, dict) or set(parsed) != {"arrays"}:
        raise CorruptDataError("the index of the file must have exactly the key 'arrays'")
    if not isinstance(parsed["arrays"], list):
        raise CorruptDataError("'arrays' in the index of the file must be a list")
    entries: dict[str, ArrayEntry] = {}
    first = 0
    for config in parsed["arrays"]:
        entry = _parse_array(config, sections, first)
        if not allow_absent and isinstance(entry.stored_codec, AbsentCodec):
            raise entry.stored_codec.error
        if entry.name in entries:
            raise CorruptDataError(f"the file has two arrays named {_short(entry.name)}")
        entries[entry.name] = entry
        first += len(entry.sections)
    if first != len(sections):
        raise CorruptDataError(f"{len(sections) - first} sections belong to no array")
    return entries


def _parse_json(index: bytes) -> Any:
    try:
        parsed = json.loads(
            index.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
            parse_int=_short_int,
        )
        _check_values(parsed, _MAX_DEPTH)
    except RecursionError as error:
        raise CorruptDataError("the index of the file is nested too deeply") from error
    except UnicodeError as error:
        raise CorruptDataError("the index of the file is not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise CorruptDataError(f"the index of the file is not JSON: {error}") from error
    return parsed


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise CorruptDataError("a key stands twice in one object of the index")
    return unique


def _refuse_constant(text: str) -> Any:
    raise CorruptDataError(f"{text} in the index of the file is not JSON")


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise CorruptDataError("a number in the index of the file is too large")
    return value


def _short_int(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise CorruptDataError("a number in the index of the file is too large")
    return int(text)


def _check_values(value: Any, depth: int) -> None:
    """Reject deep nesting, and strings that UTF-8 cannot represent."""
    if depth == 0:
        raise CorruptDataError("the index of the file is nested too deeply")
    parts: Iterable[Any] = ()
    if isinstance(value, dict):
        parts = (*value.keys(), *value.values())
    elif isinstance(value, list):
        parts = value
    elif isinstance(value, str):
        value.encode("utf-8")
    for part in parts:
        _check_values(part, depth - 1)


def _parse_array(config: Any, sections: SectionTable, first: int) -> ArrayEntry:
    if not isinstance(config, dict) or set(config) != _KEYS:
        raise CorruptDataError(f"an array must be described by exactly {sorted(_KEYS)}")
    if not isinstance(config["name"], str) or not isinstance(config["reason"], str):
        raise CorruptDataError("the name and reason of an array must be strings")
    try:
        info = TensorInfo.from_config({"shape": config["shape"], "dtype": config["dtype"]})
        chunk_values, num_chunks = _parse_chunks(config, info, len(sections) - first)
        entry = ArrayEntry(
            name=config["name"],
            info=info,
            stored_codec=_parse_codec(config["codec"], info),
            chunk_values=chunk_values,
            error_bound=_parse_error_bound(config["error_bound"]),
            reason=config["reason"],
            metadata=_parse_metadata(config["metadata"]),
            sections=sections[first : first + num_chunks],
        )
        _check_sizes(entry)
    except CorruptDataError as error:
        raise CorruptDataError(f"array {_short(config['name'])}: {error}") from error
    return entry


def _parse_chunks(config: Mapping[str, Any], info: TensorInfo, num_present: int) -> tuple[int, int]:
    chunk_values = config["chunk_values"]
    if type(chunk_values) is not int or not 1 <= chunk_values <= MAX_CHUNK_VALUES:
        raise CorruptDataError("chunk_values must be an integer from 1 to 2**30")
    num_chunks = len(ChunkPlan(info.shape, chunk_values))
    if type(config["num_chunks"]) is not int or config["num_chunks"] != num_chunks:
        raise CorruptDataError(f"num_chunks must be {num_chunks} for this shape")
    if num_chunks > num_present:
        raise CorruptDataError(f"{num_chunks} sections are needed, {num_present} are left")
    return chunk_values, num_chunks


def _parse_codec(config: Any, info: TensorInfo) -> Codec | AbsentCodec:
    try:
        codec = registry.from_config(config)
        supported = codec.supports(info.dtype)
    except (UnknownCodecError, UnsupportedVersionError) as error:
        return AbsentCodec(config, error)
    # errors that a codec's own checks raise for invalid options
    except (ValueError, TypeError, ArithmeticError) as error:
        raise CorruptDataError(str(error)) from error
    if not supported or codec.is_selector:
        raise CorruptDataError(f"codec {codec.codec_id!r} cannot hold {info.dtype}")
    return codec


def _parse_error_bound(value: Any) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or value < 0:
        raise CorruptDataError("error_bound must be null or a number of at least 0")
    return float(value)


def _parse_metadata(value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise CorruptDataError("metadata must be an object of strings")
    return value


def _check_sizes(entry: ArrayEntry) -> None:
    """Reject payloads too small for their chunk, so that every shape is backed by bytes."""
    last = len(entry.sections) - 1
    nbytes = entry.sections.rows[:, 1]
    # all chunks but the last one have the same shape
    for index, least_present in ((0, nbytes[: max(1, last)].min()), (last, nbytes[last])):
        chunk = entry.plan[index]
        # a tensor on the meta device has a size but no memory
        payload = torch.empty(int(least_present), dtype=torch.uint8, device="meta")
        check_payload_size(payload, chunk.stop - chunk.start)
        if isinstance(entry.stored_codec, AbsentCodec) or entry.codec.size_kind != "fixed":
            continue
        exact_nbytes = entry.codec.max_nbytes(chunk.shape, entry.info.dtype)
        if least_present < exact_nbytes:
            raise CorruptDataError(
                f"a payload of {least_present} bytes cannot be a chunk of shape {chunk.shape}, "
                f"which takes {exact_nbytes}"
            )


def _short(name: str) -> str:
    return repr(name if len(name) <= 100 else name[:100] + "...")
