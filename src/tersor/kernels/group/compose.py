"""Requantization of a sum, composed of operations that each choose their own backend."""

from __future__ import annotations

import torch

from tersor.kernels.group import group_dequantize, group_quantize


def group_dequantize_sum_quantize(
    data: torch.Tensor,
    scales: torch.Tensor,
    nbits: int,
    group: int,
    out_nbits: int,
    seed: int | None = None,
    out: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Requantize the sum of what several senders quantized, in groups of the same size.

    Between the hops of a two-level reduction, values stay transformed: the transform is linear.

    Args:
        data: uint8 [num_senders, nbytes], or [num_senders, num_rows, nbytes]; each row contiguous.
        scales: float32, with the same leading dimensions and one scale per group.
        nbits: 8 or 4, bits per value in ``data``.
        group: values per scale.
        out_nbits: 8 or 4, bits per value in the result.
        seed: see ``reference.group_quantize``.
        out: scales and data to write to and return, as in ``reference.group_quantize``.

    Returns:
        The new scales and data.
    """
    total = group_dequantize(data, scales, nbits, group)
    if data.dim() == 3:
        total = total.view(data.shape[1], -1)
    new_scales, new_data = group_quantize(total, out_nbits, group, seed, out=out)
    return new_scales, new_data
