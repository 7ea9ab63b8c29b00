"""Whole payloads of lists of tensors, without waiting: the building blocks of codecs.

There is one pair of operations per kind of codec. Each has a composition of smaller operations, which
runs on every backend and whose reference defines the bytes. A backend with a fused kernel for lists
names its own target.
"""

from tersor.kernels.runtime.op import Op

encode_streams = Op.of(
    __name__, "encode_streams", composed="compose", cpu="cpu.flat", gpu="gpu.lists"
)
decode_streams = Op.of(
    __name__, "decode_streams", composed="compose", cpu="cpu.flat", gpu="gpu.lists"
)
encode_row_lists = Op.of(
    __name__, "encode_row_lists", composed="compose", cpu="cpu.rows", gpu="gpu.lists"
)
decode_row_lists = Op.of(
    __name__, "decode_row_lists", composed="compose", cpu="cpu.rows", gpu="gpu.lists"
)
encode_groups = Op.of(__name__, "encode_groups", composed="compose", gpu="gpu.lists")
decode_groups = Op.of(__name__, "decode_groups", composed="compose", gpu="gpu.lists")
encode_rms = Op.of(__name__, "encode_rms", composed="rms", gpu="gpu.lists")
decode_rms = Op.of(__name__, "decode_rms", composed="rms", gpu="gpu.lists")
encode_masks = Op.of(__name__, "encode_masks", composed="fields", gpu="gpu.lists")
decode_masks = Op.of(__name__, "decode_masks", composed="fields", gpu="gpu.lists")
encode_ranges = Op.of(__name__, "encode_ranges", composed="fields", gpu="gpu.lists")
decode_ranges = Op.of(__name__, "decode_ranges", composed="fields", gpu="gpu.lists")
encode_exact = Op.of(__name__, "encode_exact", composed="exact")
decode_exact = Op.of(__name__, "decode_exact", composed="exact", gpu="gpu.lists")
encode_casts = Op.of(__name__, "encode_casts", composed="compose", gpu="gpu.lists")
decode_casts = Op.of(__name__, "decode_casts", composed="compose", gpu="gpu.lists")
encode_scaled_casts = Op.of(__name__, "encode_scaled_casts", composed="compose", gpu="gpu.lists")
decode_scaled_casts = Op.of(__name__, "decode_scaled_casts", composed="compose", gpu="gpu.lists")

__all__ = [
    "decode_casts",
    "decode_exact",
    "decode_groups",
    "decode_masks",
    "decode_ranges",
    "decode_rms",
    "decode_row_lists",
    "decode_scaled_casts",
    "decode_streams",
    "encode_casts",
    "encode_exact",
    "encode_groups",
    "encode_masks",
    "encode_ranges",
    "encode_rms",
    "encode_row_lists",
    "encode_scaled_casts",
    "encode_streams",
]
