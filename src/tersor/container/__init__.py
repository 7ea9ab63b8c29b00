"""Bytes on disk and on the wire: container files and frames."""

from tersor.container.batch import Batch
from tersor.container.coding import begin_decode_batch, decode_batch, encode_batch
from tersor.container.decoding import Decoding
from tersor.container.index import AbsentCodec, ArrayEntry
from tersor.container.reader import Reader, loads
from tersor.container.writer import FILE_CHUNK_VALUES, Writer, dumps

__all__ = [
    "FILE_CHUNK_VALUES",
    "AbsentCodec",
    "ArrayEntry",
    "Batch",
    "Decoding",
    "Reader",
    "Writer",
    "begin_decode_batch",
    "decode_batch",
    "dumps",
    "encode_batch",
    "loads",
]
