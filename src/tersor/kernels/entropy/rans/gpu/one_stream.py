"""rANS of one stream in Triton: one program, of one warp, per block."""

from __future__ import annotations

import torch
import triton.language as tl

from tersor.errors import CorruptDataError
from tersor.kernels.entropy.rans import layout, reference
from tersor.kernels.entropy.rans.gpu.block import (
    LANES,
    decode_part,
    encode_block,
)
from tersor.kernels.entropy.rans.gpu.place import PAIRS_PER_COPY, place_block
from tersor.kernels.entropy.rans.gpu.table import (
    NUM_FACTS,
    STATUS,
    SYMBOL,
    USED,
    WORDS,
    decoding_table,
    encoding_table,
)
from tersor.kernels.entropy.rans.layout import RansLayout, prob_bits
from tersor.kernels.entropy.symbols.alphabet import NARROW, WIDE, Symbols
from tersor.kernels.entropy.symbols.gpu.histogram import has_ptx
from tersor.kernels.entropy.symbols.gpu.symbols import put_escapes
from tersor.kernels.quantize.gpu.values import bits_of, from_bits
from tersor.kernels.runtime.gpu.element_types import TYPES
from tersor.kernels.runtime.gpu.launch import jit_kernel

_NARROW_BITS = tl.constexpr(layout.NARROW_BITS)


@jit_kernel(do_not_specialize=["num_symbols", "block"])
def _encode_kernel(
    symbols, num_symbols, block, entries, facts, words, states, ends, BITS: tl.constexpr,
    PTX: tl.constexpr,
):  # fmt: skip
    """One program, of one warp, encodes one block backwards from the end of its slot in ``words``."""
    b = tl.program_id(0).to(tl.int64)
    num_words = tl.full((), 0, tl.int32)
    if tl.load(facts + USED) > 1:
        count = tl.minimum(num_symbols - b * block, block).to(tl.int32)
        x, num_words = encode_block(
            symbols + b * block,
            count,
            entries,
            words + (b + 1) * block,
            BITS,
            BITS > _NARROW_BITS,
            PTX,
        )
        tl.store(states + b * LANES + tl.arange(0, LANES), x.to(tl.int32, bitcast=True))
    tl.store(ends + b + 1, num_words.to(tl.int64))


@jit_kernel(
    do_not_specialize=[
        "num_frequencies", "block", "offsets_start", "states_start", "words_start",
    ]
)  # fmt: skip
def _place_kernel(
    body, frequencies, num_frequencies, ends, words, states, block,
    offsets_start, states_start, words_start, PAIRS_PER_COPY: tl.constexpr,
):  # fmt: skip
    """One program copies one block into the body."""
    b = tl.program_id(0).to(tl.int64)
    start, end = tl.load(ends + b), tl.load(ends + b + 1)
    source = words + (b + 1) * block - (end - start)
    place_block(
        body, b, tl.num_programs(0), start, end, source, states + b * LANES, frequencies,
        num_frequencies, offsets_start, states_start, words_start, PAIRS_PER_COPY,
    )  # fmt: skip


def rans_encode(
    symbols: torch.Tensor, alphabet: int, frequencies: torch.Tensor | None = None
) -> torch.Tensor:
    """See ``reference.rans_encode``; waits for the device once, for the number of words."""
    static = frequencies is not None
    place = RansLayout(symbols.numel(), alphabet, static)
    num_blocks, device = place.num_blocks, symbols.device
    if num_blocks == 0:
        return torch.zeros(place.body_nbytes(0, single=True), dtype=torch.uint8, device=device)
    ends = torch.zeros(num_blocks + 1 + NUM_FACTS.value, dtype=torch.int64, device=device)
    facts = ends[num_blocks + 1 :]
    table, entries = encoding_table(symbols, alphabet, frequencies, facts)
    words = torch.empty(num_blocks * place.block, dtype=torch.int16, device=device)
    states = torch.empty(num_blocks * layout.LANES, dtype=torch.int32, device=device)
    _encode_kernel[(num_blocks,)](
        symbols, symbols.numel(), place.block, entries, facts, words, states, ends,
        BITS=prob_bits(alphabet), PTX=has_ptx(symbols), num_warps=1,
    )  # fmt: skip
    ends[: num_blocks + 1].cumsum_(0)
    num_words, _, num_used = ends[num_blocks : num_blocks + 3].tolist()
    single = num_used <= 1
    body = torch.empty(place.body_nbytes(num_words, single), dtype=torch.uint8, device=device)
    _place_kernel[(num_blocks,)](
        body, table, 0 if static else table.numel(), ends, words, states, place.block,
        place.offsets_start, place.states_start, place.words_start(single), PAIRS_PER_COPY=PAIRS_PER_COPY,
    )  # fmt: skip
    return body


@jit_kernel(
    do_not_specialize=[
        "num_symbols", "block", "offsets_start", "states_start", "num_blocks_room",
        "num_words_room", "low", "step_bits",
    ]
)  # fmt: skip
def _decode_kernel(
    body, num_symbols, block, offsets_start, states_start, num_blocks_room, num_words_room,
    slots, facts, out, low, step_bits, BITS: tl.constexpr, TYPE: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """One program, of one warp, decodes one block."""
    b = tl.program_id(0).to(tl.int64)
    num_blocks = tl.num_programs(0)
    count = tl.minimum(num_symbols - b * block, block).to(tl.int32)
    target = out.to(tl.int64) + b * block * (TYPE.primitive_bitwidth // 8)
    good = decode_part(
        body, b, num_blocks, count, offsets_start, states_start, num_words_room,
        num_blocks <= num_blocks_room, tl.load(facts + USED), tl.load(facts + SYMBOL).to(tl.int32),
        slots, False, target, low, from_bits(step_bits, TYPE), BITS, BITS > _NARROW_BITS, TYPE, PTX,
        0,
    )  # fmt: skip
    if not good:
        tl.store(facts + STATUS, tl.full((), 1, tl.int64))
    if b == num_blocks - 1:
        end = tl.load((body + offsets_start).to(tl.pointer_type(tl.uint32)) + num_blocks)
        tl.store(facts + WORDS, end.to(tl.int64))


def _decode(
    body: torch.Tensor,
    alphabet: int,
    frequencies: torch.Tensor | None,
    out: torch.Tensor,
    low: int,
    step: float,
) -> int:
    """Decode into the flat ``out``; return the number of body bytes read."""
    place = RansLayout(out.numel(), alphabet, frequencies is not None)
    if not 1 <= alphabet <= WIDE or body.numel() < place.states_start:
        raise CorruptDataError("a rANS body is truncated")
    # the kernel reads aligned 4-byte words, but a body sliced out of a buffer may start anywhere
    body = body if body.data_ptr() % 4 == 0 else body.clone()
    stored = body[: 2 * alphabet].view(torch.int16) if frequencies is None else frequencies
    slots, facts = decoding_table(stored, alphabet)
    words_start = place.words_start(single=False)
    _decode_kernel[(place.num_blocks,)](
        body, out.numel(), place.block, place.offsets_start, place.states_start,
        (body.numel() - place.states_start) // (4 * layout.LANES),
        max(0, body.numel() - words_start) // 2,
        slots, facts, out, low, bits_of(step), BITS=prob_bits(alphabet), TYPE=TYPES[out.dtype],
        PTX=has_ptx(body), num_warps=1,
    )  # fmt: skip
    status, num_used, _, num_words = facts.tolist()
    nbytes = place.body_nbytes(num_words, single=num_used <= 1)
    if status or body.numel() < nbytes:
        raise CorruptDataError("a rANS body is truncated or altered")
    return nbytes


def rans_decode(
    body: torch.Tensor, num_symbols: int, alphabet: int, frequencies: torch.Tensor | None = None
) -> tuple[torch.Tensor, int]:
    """See ``reference.rans_decode``; waits for the device once, for the status."""
    if num_symbols == 0:
        return reference.rans_decode(body, 0, alphabet, frequencies)
    dtype = torch.uint8 if alphabet <= NARROW else torch.int16
    out = torch.empty(num_symbols, dtype=dtype, device=body.device)
    return out, _decode(body, alphabet, frequencies, out, 0, 1.0)


def rans_decode_dequantize(
    body: torch.Tensor,
    mapped: Symbols,
    step: float,
    out: torch.Tensor,
    frequencies: torch.Tensor | None = None,
) -> int:
    """See ``compose.rans_decode_dequantize``; waits for the device once, for the status."""
    if out.numel() == 0:
        return reference.rans_decode(body, 0, mapped.alphabet, frequencies)[1]
    values = out.view(-1)
    nbytes = _decode(body, mapped.alphabet, frequencies, values, mapped.low, step)
    put_escapes(mapped, step, values)
    return nbytes
