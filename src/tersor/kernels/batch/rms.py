"""Payloads of groups scaled by their root mean square, as a composition. ``group/rms/layout.py`` describes the body."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from tersor.errors import CorruptDataError
from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.batch.pipeline import RmsPipeline
from tersor.kernels.entropy.rans import rans_decode, rans_encode
from tersor.kernels.entropy.rans.layout import normalized_frequencies
from tersor.kernels.group.rms import rms_dequantize, rms_quantize
from tersor.kernels.group.rms.layout import (
    HEAD_NBYTES,
    SCALE_LIMIT,
    BodyLayout,
    RmsCodes,
    alphabet_of,
    f32_step,
    level_table,
    top_of,
)
from tersor.kernels.payload.compose import (
    Opened,
    decode_payload,
    put_outliers,
    seal,
    seal_exact,
)
from tersor.kernels.payload.layout import CODED, HEADER, exact_nbytes
from tersor.kernels.quantize.body import Body
from tersor.raw_bytes import as_padded_bytes


def _coded_symbols(codes: RmsCodes, alphabet: int) -> list[torch.Tensor]:
    """Return the parts of a rANS body, with frequencies from the sampled groups plus 1 for each symbol."""
    counts = codes.counts.cpu().numpy() + 1
    table = normalized_frequencies(counts, alphabet)
    device = codes.symbols.device
    stored = torch.from_numpy(table.astype(np.int16)).to(device)
    frequencies = torch.from_numpy(table).to(device)
    return [as_padded_bytes(stored), rans_encode(codes.symbols, alphabet, frequencies)]


def encode_rms_payload(x: torch.Tensor, pipeline: RmsPipeline) -> torch.Tensor:
    """Return the payload of one tensor: coded if that is smaller, else exact."""
    if x.numel() == 0:
        return seal_exact(x)
    step, zeros = pipeline.quantizer
    codes: RmsCodes = rms_quantize(x.view(-1), step, zeros)
    head = torch.zeros(HEADER.size + HEAD_NBYTES, dtype=torch.uint8, device=x.device)
    head[HEADER.size] = codes.fractions.numel() > 0
    parts = [head, as_padded_bytes(codes.fractions), as_padded_bytes(codes.scales)]
    data = torch.cat([*parts, *_coded_symbols(codes, alphabet_of(step))])
    body = Body(f32_step(step), data, codes.positions, x.view(-1)[codes.positions])
    return seal(CODED, body) if body.nbytes < exact_nbytes(x.nbytes) else seal_exact(x)


def encode_rms(xs: Sequence[torch.Tensor], pipeline: RmsPipeline) -> EncodedList:
    """Scale groups by their root mean square, then quantize and entropy-code them."""
    return EncodedList.apart([encode_rms_payload(x, pipeline) for x in xs], xs)


def decode_rms_payload(payload: torch.Tensor, out: torch.Tensor, pipeline: RmsPipeline) -> None:
    """Decode what ``encode_rms_payload`` wrote."""
    step = pipeline.quantizer.step

    def decode_body(opened: Opened, out: torch.Tensor) -> int:
        body = opened.body
        layout = BodyLayout.of(body, out.numel(), step)
        start = layout.symbols_start
        fractions = body[HEAD_NBYTES : HEAD_NBYTES + 2 * top_of(step) * layout.has_zeros]
        scales = body[layout.scales_start : layout.scales_start + 2 * layout.num_groups]
        scales = scales.view(torch.int16)
        if opened.step != f32_step(step) or _is_beyond(scales):
            raise CorruptDataError("a body of scaled groups has an impossible step or scale")
        symbols, nbytes = rans_decode(body[start:], out.numel(), alphabet_of(step))
        rms_dequantize(symbols, scales, level_table(step, fractions.view(torch.int16)), out)
        put_outliers(opened, out)
        return start + int(nbytes)

    decode_payload(payload, out, decode_body)


def _is_beyond(scales: torch.Tensor) -> bool:
    return int((scales.to(torch.int32) & 0xFFFF).max()) >= SCALE_LIMIT


def decode_rms(outs: Sequence[torch.Tensor], encoded: EncodedList, pipeline: RmsPipeline) -> None:
    """Decode what ``encode_rms`` wrote into contiguous tensors."""
    for out, payload in zip(outs, encoded.payloads(), strict=True):
        decode_rms_payload(payload, out, pipeline)
