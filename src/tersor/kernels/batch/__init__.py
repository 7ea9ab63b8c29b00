"""Whole payloads of a list of tensors, without waiting: what codecs are made of.

One pair of operations per kind of codec. Each has a composition of smaller operations, which runs on
every backend and whose reference defines the bytes; where a backend has a fused kernel for a list,
it names its own target.
"""

from tersor.kernels.runtime.op import Op

_COMPOSED = "tersor.kernels.batch.compose"
_CPU = "tersor.kernels.batch.cpu"
_GPU = "tersor.kernels.batch.gpu.lists"

encode_streams = Op(
    "encode_streams",
    {
        "composed": f"{_COMPOSED}:encode_streams",
        "cpu": f"{_CPU}.flat:encode_streams",
        "gpu": f"{_GPU}:encode_streams",
    },
)
decode_streams = Op(
    "decode_streams",
    {
        "composed": f"{_COMPOSED}:decode_streams",
        "cpu": f"{_CPU}.flat:decode_streams",
        "gpu": f"{_GPU}:decode_streams",
    },
)
encode_rows = Op(
    "encode_row_lists",
    {
        "composed": f"{_COMPOSED}:encode_rows",
        "cpu": f"{_CPU}.rows:encode_rows",
        "gpu": f"{_GPU}:encode_rows",
    },
)
decode_rows = Op(
    "decode_row_lists",
    {
        "composed": f"{_COMPOSED}:decode_rows",
        "cpu": f"{_CPU}.rows:decode_rows",
        "gpu": f"{_GPU}:decode_rows",
    },
)
encode_groups = Op(
    "encode_groups",
    {"composed": f"{_COMPOSED}:encode_groups", "gpu": f"{_GPU}:encode_groups"},
)
decode_groups = Op(
    "decode_groups",
    {"composed": f"{_COMPOSED}:decode_groups", "gpu": f"{_GPU}:decode_groups"},
)
encode_casts = Op(
    "encode_casts", {"composed": f"{_COMPOSED}:encode_casts", "gpu": f"{_GPU}:encode_casts"}
)
decode_casts = Op(
    "decode_casts", {"composed": f"{_COMPOSED}:decode_casts", "gpu": f"{_GPU}:decode_casts"}
)
encode_scaled_casts = Op(
    "encode_scaled_casts",
    {"composed": f"{_COMPOSED}:encode_scaled_casts", "gpu": f"{_GPU}:encode_scaled_casts"},
)
decode_scaled_casts = Op(
    "decode_scaled_casts",
    {"composed": f"{_COMPOSED}:decode_scaled_casts", "gpu": f"{_GPU}:decode_scaled_casts"},
)

__all__ = [
    "decode_casts",
    "decode_groups",
    "decode_rows",
    "decode_scaled_casts",
    "decode_streams",
    "encode_casts",
    "encode_groups",
    "encode_rows",
    "encode_scaled_casts",
    "encode_streams",
]
