"""Lossy tensor compression for deep-learning training, with a promised error."""

import tersor._process  # noqa: F401 - first: torch takes seconds
from tersor._version import __version__ as __version__
from tersor.api import compress, decompress, load, save
from tersor.codecs import (
    Codec,
    Packed,
    codec_ids,
    create,
    register,
)
from tersor.container import (
    Batch,
    Reader,
    Writer,
    begin_decode_batch,
    decode_batch,
    dumps,
    encode_batch,
    loads,
)
from tersor.errors import (
    BackendUnavailableError,
    CorruptDataError,
    ExchangeError,
    MemoryLimitError,
    SpecError,
    TersorError,
    UnknownCodecError,
    UnsupportedVersionError,
)
from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.runtime.op import use_backend
from tersor.kernels.runtime.replay import graph_replay_nbytes, set_graph_replay
from tersor.ops import GraphCodec
from tersor.types import Bound, TensorInfo
from tersor.warm_up import WarmedUp, warmup

__all__ = [
    "BackendUnavailableError",
    "Batch",
    "Bound",
    "Codec",
    "CorruptDataError",
    "EncodedList",
    "ExchangeError",
    "GraphCodec",
    "MemoryLimitError",
    "Packed",
    "Reader",
    "SpecError",
    "TensorInfo",
    "TersorError",
    "UnknownCodecError",
    "UnsupportedVersionError",
    "WarmedUp",
    "Writer",
    "begin_decode_batch",
    "codec_ids",
    "compress",
    "create",
    "decode_batch",
    "decompress",
    "dumps",
    "encode_batch",
    "graph_replay_nbytes",
    "load",
    "loads",
    "register",
    "save",
    "set_graph_replay",
    "use_backend",
    "warmup",
]
