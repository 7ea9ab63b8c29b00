"""Whole payloads of a list of tensors, without waiting: what codecs are made of.

One pair of operations per kind of codec. Each has a composition of smaller operations, which runs on
every backend and whose reference defines the bytes; where a backend has a fused kernel for a list,
it names its own target.
"""

from tersor.kernels.runtime.op import COMPOSED, Op

_FOLDER = "tersor.kernels.batch"


def _op(name: str, cpu: str = "") -> Op:
    """Return the operation that ``compose.py`` and ``gpu/lists.py`` define, and the CPU file if named."""
    targets = {COMPOSED: f"{_FOLDER}.compose:{name}", "gpu": f"{_FOLDER}.gpu.lists:{name}"}
    return Op(name, targets | ({"cpu": f"{_FOLDER}.cpu.{cpu}:{name}"} if cpu else {}))


encode_streams, decode_streams = _op("encode_streams", "flat"), _op("decode_streams", "flat")
encode_row_lists, decode_row_lists = (
    _op("encode_row_lists", "rows"),
    _op("decode_row_lists", "rows"),
)
encode_groups, decode_groups = _op("encode_groups"), _op("decode_groups")
encode_casts, decode_casts = _op("encode_casts"), _op("decode_casts")
encode_scaled_casts, decode_scaled_casts = _op("encode_scaled_casts"), _op("decode_scaled_casts")

__all__ = [
    "decode_casts",
    "decode_groups",
    "decode_row_lists",
    "decode_scaled_casts",
    "decode_streams",
    "encode_casts",
    "encode_groups",
    "encode_row_lists",
    "encode_scaled_casts",
    "encode_streams",
]
