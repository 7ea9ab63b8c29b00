"""Fixed-length packing, plain torch. ``layout`` describes the body."""

from __future__ import annotations

import torch

from tersor.kernels.pack.blocks.layout import BitpackLayout
from tersor.kernels.quantize.grid import TILE


def pack(codes: torch.Tensor, block: int = 32, base: bool = False, lead: int = 0) -> torch.Tensor:
    """Pack int32 codes into a body that decodes block by block.

    Args:
        codes: int32, flat, any values.
        block: codes that share a width, 32 or 64.
        base: store each block's smallest code separately; for smooth data far from zero.
        lead: bytes of room, of any content, before the body.

    Returns:
        uint8 body, a multiple of 8 bytes long.

    Example:
        >>> pack(torch.tensor([1, -1, 0, 2], dtype=torch.int32)).numel()
        48
    """
    layout = BitpackLayout(codes.numel(), block)
    blocks = codes.new_zeros(layout.num_blocks, block, dtype=torch.int64)
    if base:
        blocks.view(-1)[: codes.numel()] = codes
        _fill_with_block_minimum(blocks, codes.numel())
        bases = blocks.amin(1) if layout.num_blocks else blocks.new_zeros(0)
        fields = blocks - bases[:, None]
        bases_body = pack(_differences(bases), 32)
    else:
        blocks.view(-1)[: codes.numel()] = codes
        fields = (blocks << 1) ^ (blocks >> 63)
        bases_body = codes.new_empty(0, dtype=torch.uint8)
    widths = _bit_lengths(fields.amax(1) if layout.num_blocks else fields.new_zeros(0))
    room = bases_body.new_zeros(lead)
    return torch.cat([room, bases_body, _pack_fields(fields, widths, layout)])


def _fill_with_block_minimum(blocks: torch.Tensor, num_codes: int) -> None:
    used = num_codes % blocks.shape[1] if blocks.numel() else 0
    if used:
        blocks[-1, used:] = blocks[-1, :used].min()


def _differences(bases: torch.Tensor) -> torch.Tensor:
    return torch.diff(bases, prepend=bases.new_zeros(1)).to(torch.int32)


def _bit_lengths(values: torch.Tensor) -> torch.Tensor:
    powers = 1 << torch.arange(32, device=values.device, dtype=torch.int64)
    return (values[:, None] >= powers).sum(1)


def _block_starts(widths: torch.Tensor, layout: BitpackLayout) -> tuple[torch.Tensor, int]:
    block_words = widths * (layout.block // 32)
    ends = block_words.cumsum(0)
    return ends - block_words, int(ends[-1]) if ends.numel() else 0


def _pack_fields(fields: torch.Tensor, widths: torch.Tensor, layout: BitpackLayout) -> torch.Tensor:
    starts, num_words = _block_starts(widths, layout)
    body = torch.zeros(layout.body_nbytes(num_words), dtype=torch.uint8, device=fields.device)
    offsets = torch.cat([starts[:: TILE // layout.block], starts.new_tensor([num_words])])
    body[: 4 * offsets.numel()] = offsets.to(torch.int32).view(torch.uint8)
    body[layout.widths_start : layout.widths_start + widths.numel()] = widths.to(torch.uint8)
    words = body[layout.words_start :]
    powers = 1 << torch.arange(8, device=fields.device)
    for width in widths.unique().tolist():
        chosen = torch.nonzero(widths == width).view(-1)
        bits = (fields[chosen][:, :, None] >> torch.arange(width, device=fields.device)) & 1
        packed = (bits.view(len(chosen), -1, 8) * powers).sum(2).to(torch.uint8)
        places = starts[chosen][:, None] * 4 + torch.arange(packed.shape[1], device=fields.device)
        words[places.view(-1)] = packed.view(-1)
    return body


def unpack(
    body: torch.Tensor, num_codes: int, block: int = 32, base: bool = False
) -> tuple[torch.Tensor, int]:
    """Return the int32 codes and the number of body bytes read.

    Raises:
        CorruptDataError: the body is not what ``pack`` writes for ``num_codes`` codes.
    """
    layout = BitpackLayout(num_codes, block)
    lead_nbytes = 0
    if base:
        differences, lead_nbytes = unpack(body, layout.num_blocks, 32)
        bases = differences.to(torch.int64).cumsum(0)
    offsets, widths_u8, words = layout.split(body[lead_nbytes:])
    widths = widths_u8.to(torch.int64)
    starts, num_words = _block_starts(widths, layout)
    expected = torch.cat([starts[:: TILE // block], starts.new_tensor([num_words])])
    consistent = bool((widths <= 32).all()) and torch.equal(offsets, expected.to(torch.int32))
    nbytes = layout.checked_nbytes(consistent, num_words, words.numel())
    fields = _unpack_fields(words, widths, layout)
    codes = fields + bases[:, None] if base else (fields >> 1) ^ -(fields & 1)
    return codes.view(-1)[:num_codes].to(torch.int32), lead_nbytes + nbytes


def _unpack_fields(
    words: torch.Tensor, widths: torch.Tensor, layout: BitpackLayout
) -> torch.Tensor:
    starts, _ = _block_starts(widths, layout)
    fields = torch.zeros(layout.num_blocks, layout.block, dtype=torch.int64, device=words.device)
    for width in widths.unique().tolist():
        chosen = torch.nonzero(widths == width).view(-1)
        block_nbytes = width * layout.block // 8
        places = starts[chosen][:, None] * 4 + torch.arange(block_nbytes, device=words.device)
        packed = words[places.view(-1)].view(len(chosen), block_nbytes, 1).to(torch.int64)
        bits = (packed >> torch.arange(8, device=words.device)) & 1
        weights = 1 << torch.arange(width, device=words.device)
        fields[chosen] = (bits.view(len(chosen), layout.block, width) * weights).sum(2)
    return fields
