"""Selection of the lists that a GPU handles in a few launches, without waiting; the rest is composed.

A fused kernel that does not know all forms of a payload reports, per tensor and on the device, which tensors
it left. A second pass encodes these with a kernel that knows more forms, or with the composition, and yields
the bytes of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch

from tersor.kernels.batch import compose, exact, fields
from tersor.kernels.batch import rms as composed_rms
from tersor.kernels.batch.compose import as_rows
from tersor.kernels.batch.encoded_list import (
    EncodedList,
    SecondPass,
    Undecoded,
    Unwritten,
    all_undecoded,
    settled,
)
from tersor.kernels.batch.gpu import (
    ans,
    ans_decode,
    ans_wide,
    masks,
    packed,
    packed_boxes,
    packed_decode,
    ranges,
    rms,
    rms_decode,
    rows,
    rows_decode,
)
from tersor.kernels.batch.gpu import cast as casts
from tersor.kernels.batch.gpu import group as groups
from tersor.kernels.batch.gpu.composition import second_pass_decoder, second_pass_encoder
from tersor.kernels.batch.gpu.fused_list import FusedList
from tersor.kernels.batch.gpu.recorded_encoder import RecordedEncoder
from tersor.kernels.batch.gpu.replay import Decoding, Encoding
from tersor.kernels.batch.pipeline import (
    CastPipeline,
    ExactPipeline,
    GroupPipeline,
    MaskPipeline,
    RangePipeline,
    RmsPipeline,
    RowPipeline,
    ScaledCastPipeline,
    StreamPipeline,
)
from tersor.kernels.group import layout as group_layout
from tersor.kernels.group.cast import layout as cast_layout
from tersor.kernels.group.masks import layout as mask_layout
from tersor.kernels.group.ranges import layout as range_layout
from tersor.kernels.payload.gpu.fixed_size import FixedFrame
from tersor.kernels.runtime.replay import MOST_RESULT_NBYTES
from tersor.kernels.runtime.sparing import lastingly_sparing
from tersor.types import Bound


class _Fused(NamedTuple):
    """Kernels for whole lists of one pair of predictor and encoder.

    Attributes:
        encode: takes tensors, bounds and the encoder.
        decode: takes locations of payloads, tensors and the encoder; returns a status per tensor.
        encode_again: takes the arguments of ``encode``, and is slower but knows more forms; None if there is
            no such kernel.
        choose: takes numbers of values and bounds; returns what ``encode`` decides on the host from the values
            of bounds, which replays must share. None if ``encode`` decides nothing.
    """

    encode: Callable[..., FusedList]
    decode: Callable[..., torch.Tensor]
    encode_again: Callable[..., FusedList] | None = None
    choose: Callable[[Sequence[int], Sequence[Bound]], Hashable] | None = None


_STREAMS: Final = {
    (0, "bitpack"): _Fused(packed.encode_packed, packed_decode.decode_packed),
    (1, "bitpack"): _Fused(
        partial(packed.encode_packed, dims=1), partial(packed_decode.decode_packed, dims=1)
    ),
    (2, "bitpack"): _Fused(
        partial(packed.encode_packed, dims=2), partial(packed_boxes.decode_shaped, dims=2)
    ),
    (3, "bitpack"): _Fused(
        partial(packed.encode_packed, dims=3), partial(packed_boxes.decode_shaped, dims=3)
    ),
    **{
        (dims, "ans"): _Fused(
            partial(ans.encode_ans, dims=dims),
            partial(ans_decode.decode_ans, dims=dims),
            partial(ans.encode_ans, are_wide=True, dims=dims),
            partial(ans_wide.wide_tensors, dims=dims),
        )
        for dims in range(4)
    },
    **{
        (dims, "ans-static"): _Fused(
            partial(ans.encode_ans, dims=dims), partial(ans_decode.decode_ans, dims=dims)
        )
        for dims in range(4)
    },
}
"""Fused kernels by predictor and encoder form."""


def encode_streams(
    xs: Sequence[torch.Tensor],
    bounds: Sequence[Bound],
    pipeline: StreamPipeline,
    with_ranges: bool = False,
) -> EncodedList:
    """See ``compose.encode_streams``; fused kernels do not wait."""
    fused = _STREAMS.get((pipeline.predictor, pipeline.encoder.form))
    if fused is None:
        return compose.encode_streams(xs, bounds, pipeline, with_ranges)

    def compose_one(x: torch.Tensor, bound: Bound) -> torch.Tensor:
        return compose.encode_streams([x], [bound], pipeline).payloads()[0]

    encode_rest = second_pass_encoder(compose_one)

    @lastingly_sparing
    def encode_one(x: torch.Tensor, bound: Bound) -> torch.Tensor:
        if fused.encode_again is None:
            return encode_rest(x, bound)
        made = fused.encode_again([x], [bound], pipeline.encoder)
        (found,) = settled([_unsettled(made, [x], [bound], encode_rest)])
        return found.payloads()[0]

    encode = partial(fused.encode, bounds=bounds, encoder=pipeline.encoder, with_ranges=with_ranges)
    chosen = None if fused.choose is None else fused.choose([x.numel() for x in xs], bounds)
    call = Encoding((pipeline, with_ranges, chosen), xs, bounds)
    made = call.replayed(xs)
    if made is None:
        made = encode(xs)
        call.note(xs, made, partial(encode, xs))
    again = call.again
    if not made.can_be_copied(MOST_RESULT_NBYTES):
        # no graph can be captured
        again = RecordedEncoder(xs[0].device, encode)
    return _unsettled(made, xs, bounds, encode_one, again)


def decode_streams(
    outs: Sequence[torch.Tensor], encoded: EncodedList, pipeline: StreamPipeline
) -> Undecoded | None:
    """See ``compose.decode_streams``; this does not wait.

    Returns:
        The status to check before the tensors are used; None if all are decoded.
    """

    def decode_one(out: torch.Tensor, payload: torch.Tensor) -> None:
        compose.decode_stream(payload, out, pipeline)

    fused = _STREAMS.get((pipeline.predictor, pipeline.encoder.form))
    if fused is None:
        return _composed(outs, encoded, decode_one)
    decode = partial(fused.decode, outs=outs, encoder=pipeline.encoder)
    call = Decoding((decode_streams, pipeline), outs, encoded, decode)
    return Undecoded(call.made(), second_pass_decoder(decode_one), call.repeatable)


def encode_row_lists(
    xs: Sequence[torch.Tensor],
    bounds: Sequence[Bound],
    pipeline: RowPipeline,
    with_ranges: bool = False,
) -> EncodedList:
    """See ``compose.encode_row_lists``; with rANS this does not wait."""
    if pipeline.encoder != "ans":
        return compose.encode_row_lists(xs, bounds, pipeline, with_ranges)

    def encode_one(x: torch.Tensor, bound: Bound) -> torch.Tensor:
        return compose.encode_row_lists([x], [bound], pipeline).payloads()[0]

    encode_rest = second_pass_encoder(encode_one)
    encode = partial(rows.encode_rows_list, [as_rows(x) for x in xs], bounds)
    call = Encoding(pipeline, xs, bounds)
    made = call.replayed(xs)
    if made is None:
        made = encode()
        call.note(xs, made, encode)
    return _unsettled(made, xs, bounds, encode_rest, call.again)


def decode_row_lists(
    outs: Sequence[torch.Tensor], encoded: EncodedList, pipeline: RowPipeline
) -> Undecoded | None:
    """See ``compose.decode_row_lists`` and ``decode_streams``."""

    def decode_one(out: torch.Tensor, payload: torch.Tensor) -> None:
        compose.decode_row_payload(payload, out, pipeline)

    if pipeline.encoder != "ans":
        return _composed(outs, encoded, decode_one)
    matrices = [as_rows(out) for out in outs]

    def decode(
        buffer: torch.Tensor,
        offsets: torch.Tensor,
        sizes: torch.Tensor,
        status: torch.Tensor | None,
    ) -> torch.Tensor:
        del status
        return rows_decode.decode_rows_list(buffer, offsets, sizes, matrices)

    call = Decoding((decode_row_lists, pipeline), outs, encoded, decode)
    return Undecoded(call.made(), second_pass_decoder(decode_one), call.repeatable)


def encode_groups(
    xs: Sequence[torch.Tensor],
    pipeline: GroupPipeline,
    seed: int | None = None,
    out: torch.Tensor | None = None,
) -> EncodedList:
    """See ``compose.encode_groups``."""
    fused = groups.encode_groups if _holds_groups(pipeline) else None
    return _encode_fixed(fused, compose.encode_groups, xs, pipeline, seed, out)


def decode_groups(
    outs: Sequence[torch.Tensor], encoded: EncodedList, pipeline: GroupPipeline
) -> Undecoded | None:
    """See ``compose.decode_groups`` and ``decode_streams``."""
    fused = groups.decode_groups if _holds_groups(pipeline) else None
    nbits, group = pipeline.quantizer
    nbytes = partial(group_layout.payload_nbytes, nbits=nbits, group=group)
    return _decode_fixed(fused, compose.decode_groups, nbytes, outs, encoded, pipeline)


def encode_rms(xs: Sequence[torch.Tensor], pipeline: RmsPipeline) -> EncodedList:
    """See ``batch.rms.encode_rms``; this does not wait, and needs no second pass."""
    encode = partial(rms.encode_rms_list, pipeline=pipeline)
    return _unsettled(encode(xs), xs, again=RecordedEncoder(xs[0].device, encode))


def decode_rms(
    outs: Sequence[torch.Tensor], encoded: EncodedList, pipeline: RmsPipeline
) -> Undecoded:
    """See ``batch.rms.decode_rms`` and ``decode_streams``."""

    def decode_one(out: torch.Tensor, payload: torch.Tensor) -> None:
        composed_rms.decode_rms_payload(payload, out, pipeline)

    decode = partial(rms_decode.decode_rms_list, outs=outs, pipeline=pipeline)
    call = Decoding((decode_rms, pipeline), outs, encoded, decode)
    return Undecoded(call.made(), second_pass_decoder(decode_one), call.repeatable)


def encode_masks(
    xs: Sequence[torch.Tensor], pipeline: MaskPipeline, out: torch.Tensor | None = None
) -> EncodedList:
    """See ``fields.encode_masks``."""
    return _encode_fixed(masks.encode_masks, fields.encode_masks, xs, pipeline, out)


def decode_masks(
    outs: Sequence[torch.Tensor], encoded: EncodedList, pipeline: MaskPipeline
) -> Undecoded | None:
    """See ``fields.decode_masks`` and ``decode_streams``."""
    nbytes = partial(mask_layout.payload_nbytes, nbits=pipeline.quantizer.nbits)
    return _decode_fixed(masks.decode_masks, fields.decode_masks, nbytes, outs, encoded, pipeline)


def encode_ranges(
    xs: Sequence[torch.Tensor],
    pipeline: RangePipeline,
    seed: int | None = None,
    out: torch.Tensor | None = None,
) -> EncodedList:
    """See ``fields.encode_ranges``."""
    return _encode_fixed(ranges.encode_ranges, fields.encode_ranges, xs, pipeline, seed, out)


def decode_ranges(
    outs: Sequence[torch.Tensor], encoded: EncodedList, pipeline: RangePipeline
) -> Undecoded | None:
    """See ``fields.decode_ranges`` and ``decode_streams``."""
    nbytes = partial(range_layout.payload_nbytes, group=pipeline.quantizer.group)
    return _decode_fixed(
        ranges.decode_ranges, fields.decode_ranges, nbytes, outs, encoded, pipeline
    )


def decode_exact(
    outs: Sequence[torch.Tensor], encoded: EncodedList, pipeline: ExactPipeline
) -> Undecoded | None:
    """See ``exact.decode_exact`` and ``decode_streams``."""

    def decode_one(out: torch.Tensor, payload: torch.Tensor) -> None:
        exact.decode_exact([out], EncodedList.apart([payload]), pipeline)

    return _composed(outs, encoded, decode_one)


def _holds_groups(pipeline: GroupPipeline) -> bool:
    return group_layout.is_held_whole(pipeline.quantizer.group)


def encode_casts(
    xs: Sequence[torch.Tensor], pipeline: CastPipeline, out: torch.Tensor | None = None
) -> EncodedList:
    """See ``compose.encode_casts``."""
    fused = None if pipeline.quantizer.dtype is None else casts.encode_casts
    return _encode_fixed(fused, compose.encode_casts, xs, pipeline, out)


def decode_casts(
    outs: Sequence[torch.Tensor], encoded: EncodedList, pipeline: CastPipeline
) -> Undecoded | None:
    """See ``compose.decode_casts`` and ``decode_streams``."""
    fused = None if pipeline.quantizer.dtype is None else casts.decode_casts
    return _decode_fixed(
        fused, compose.decode_casts, lambda numel: 2 * numel, outs, encoded, pipeline
    )


def encode_scaled_casts(
    xs: Sequence[torch.Tensor], pipeline: ScaledCastPipeline, out: torch.Tensor | None = None
) -> EncodedList:
    """See ``compose.encode_scaled_casts``."""
    fused = casts.encode_scaled_casts if pipeline.quantizer.group <= cast_layout.TILE else None
    return _encode_fixed(fused, compose.encode_scaled_casts, xs, pipeline, out)


def decode_scaled_casts(
    outs: Sequence[torch.Tensor], encoded: EncodedList, pipeline: ScaledCastPipeline
) -> Undecoded | None:
    """See ``compose.decode_scaled_casts`` and ``decode_streams``."""
    group = pipeline.quantizer.group
    fused = casts.decode_scaled_casts if group <= cast_layout.TILE else None
    nbytes = partial(cast_layout.payload_nbytes, group=group)
    return _decode_fixed(fused, compose.decode_scaled_casts, nbytes, outs, encoded, pipeline)


def _encode_fixed(
    fused: Callable[..., FixedFrame] | None,
    composed: Callable[..., EncodedList],
    xs: Sequence[torch.Tensor],
    *options: Any,
) -> EncodedList:
    """Encode payloads of known sizes; a single tensor needs no table of tiles, and is composed."""
    if fused is None or len(xs) == 1:
        return composed(xs, *options)
    frame = fused(xs, *options)
    return EncodedList(frame.nbytes, frame.buffer, device_sizes=frame.sizes)


def _decode_fixed(
    fused: Callable[..., torch.Tensor] | None,
    composed: Callable[..., None],
    nbytes: Callable[[int], int],
    outs: Sequence[torch.Tensor],
    encoded: EncodedList,
    pipeline: GroupPipeline | MaskPipeline | RangePipeline | CastPipeline | ScaledCastPipeline,
) -> Undecoded | None:
    """Decode payloads that must have ``nbytes(numel)`` bytes, which the host checks if it knows their sizes."""

    def decode_one(out: torch.Tensor, payload: torch.Tensor) -> None:
        composed([out], EncodedList.apart([payload]), pipeline)

    is_known = encoded.is_settled
    if fused is None or (is_known and len(outs) == 1):
        return _composed(outs, encoded, decode_one)
    if is_known and list(encoded.sizes) != [nbytes(out.numel()) for out in outs]:
        return _composed(outs, encoded, decode_one)
    buffer, offsets, sizes, checked = encoded.places()
    own = encoded.status if checked is None else checked[1:]
    found = fused(buffer, offsets, sizes, outs, pipeline, own)
    return None if is_known else Undecoded(found if checked is None else checked, decode_one)


def _unsettled(
    made: FusedList,
    xs: Sequence[torch.Tensor],
    bounds: Sequence[Bound] = (),
    encode_one: Callable[[torch.Tensor, Bound], torch.Tensor] | None = None,
    again: Callable[[Sequence[torch.Tensor]], FusedList | None] | None = None,
) -> EncodedList:
    """Return an ``EncodedList``; ``encode_one`` is its second pass, and ``again`` makes the call for other tensors."""
    second_pass = None
    if made.needed is not None and encode_one is not None:
        second_pass = SecondPass(made.needed, lambda k: encode_one(xs[k].detach(), bounds[k]))
    memory = made.memory
    return EncodedList(
        made.sizes,
        None if isinstance(memory, Unwritten) else memory,
        ranges=made.keys,
        unwritten=memory if isinstance(memory, Unwritten) else None,
        second_pass=second_pass,
        again=None if again is None else partial(_repeated, again, bounds, encode_one),
    )


def _repeated(
    again: Callable[[Sequence[torch.Tensor]], FusedList | None],
    bounds: Sequence[Bound],
    encode_one: Callable[[torch.Tensor, Bound], torch.Tensor] | None,
    xs: Sequence[torch.Tensor],
) -> EncodedList | None:
    """Encode other tensors by ``again``; None if that is impossible at the moment."""
    made = again(xs)
    return None if made is None else _unsettled(made, xs, bounds, encode_one, again)


def _composed(
    outs: Sequence[torch.Tensor],
    encoded: EncodedList,
    decode_one: Callable[[torch.Tensor, torch.Tensor], None],
) -> Undecoded | None:
    """Decode payload by payload, or defer this if the host does not know their sizes yet."""
    if not encoded.is_settled:
        return Undecoded(all_undecoded(encoded), decode_one)
    for out, payload in zip(outs, encoded.payloads(), strict=True):
        decode_one(out, payload)
    return None
