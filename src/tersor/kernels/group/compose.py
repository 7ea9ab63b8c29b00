"""Transform, quantization, sums and bases in one operation: the compositions that define the answer.

The parts choose their own backend, so the composition of the sums serves the CPU too.
"""

from __future__ import annotations

import torch

from tersor.kernels.group import group_dequantize, group_quantize
from tersor.kernels.group.reference import nan_of
from tersor.kernels.transform import hadamard as hadamard_transform


def group_transform_quantize(
    x: torch.Tensor,
    nbits: int,
    group: int,
    seed: int | None = None,
    hadamard: bool = False,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
    base: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize groups of a flat tensor of any float dtype, after a Hadamard transform if asked.

    Args:
        x: flat; what it lacks to a whole group counts as zero.
        nbits: 8 or 4.
        group: values per scale, even; with ``hadamard`` a multiple of 32.
        seed: see ``reference.group_quantize``.
        hadamard: transform every 32 values first.
        out: scales and data to write to and return instead of new ones.
        base: quantize ``x - base`` instead, a difference rounded to the dtype that both have.

    Returns:
        What ``reference.group_quantize`` returns for the padded, transformed float32 values.
    """
    values = (x if base is None else x - base).to(torch.float32)
    missing = -values.numel() % group
    if missing:
        values = torch.cat([values, values.new_zeros(missing)])
    if hadamard:
        values = hadamard_transform(values)
    scales, data = group_quantize(values, nbits, group, seed, out)
    return scales, data


def group_dequantize_transform(
    data: torch.Tensor,
    scales: torch.Tensor,
    nbits: int,
    group: int,
    hadamard: bool,
    out: torch.Tensor,
    add: bool = False,
) -> None:
    """Write the values of ``group_transform_quantize``, or of several senders' sum, into ``out``.

    The senders are added one after the other, in float32 and before the inverse transform, which
    happens once. A NaN of one sender makes the sum NaN.

    Args:
        data: uint8, flat, or one row per sender.
        scales: float32, flat, or one row per sender.
        nbits: 8 or 4.
        group: values per scale.
        hadamard: undo the transform.
        out: contiguous, any float dtype; may end inside the last group. Every NaN in it is
            ``nan_of`` its dtype.
        add: add the float32 values to what ``out`` holds. The sum is made in float32, or in float64
            if ``out`` is, and rounded once.
    """
    flat = out.view(-1)
    values = _summed(data, scales, nbits, group)
    if hadamard:
        values = hadamard_transform(values, inverse=True)
    values = values[: flat.numel()]
    values = flat + values if add else values
    nan = nan_of(out.dtype).to(out.device)
    flat.copy_(torch.where(values.isnan(), nan, values.to(out.dtype)))


def group_dequantize_sum_quantize(
    data: torch.Tensor,
    scales: torch.Tensor,
    nbits: int,
    group: int,
    out_nbits: int,
    seed: int | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize the sum of what several senders quantized, in groups of the same size.

    Between the hops of a two-level reduction values stay transformed: the transform is linear.

    Args:
        data: uint8, one row per sender.
        scales: float32, one row per sender.
        nbits: 8 or 4, bits per value in ``data``.
        group: values per scale.
        out_nbits: 8 or 4, bits per value in the result.
        seed: see ``reference.group_quantize``.
        out: scales and data to write to and return instead of new ones.
    """
    values = _summed(data, scales, nbits, group)
    new_scales, new_data = group_quantize(values, out_nbits, group, seed, out)
    return new_scales, new_data


def _summed(data: torch.Tensor, scales: torch.Tensor, nbits: int, group: int) -> torch.Tensor:
    """Return the sum over the senders, in their order, without an inverse transform."""
    senders = list(zip(torch.atleast_2d(data), torch.atleast_2d(scales), strict=True))
    total: torch.Tensor = group_dequantize(*senders[0], nbits, group)
    for one_data, one_scales in senders[1:]:
        total += group_dequantize(one_data, one_scales, nbits, group)
    return total
