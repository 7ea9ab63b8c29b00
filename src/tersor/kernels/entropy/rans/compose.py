"""Decoding directly to values, as the composition that defines the results."""

from __future__ import annotations

import torch

from tersor.kernels.entropy.rans import rans_decode
from tersor.kernels.entropy.symbols import Symbols, dequantize_symbols


def rans_decode_dequantize(
    body: torch.Tensor,
    mapped: Symbols,
    step: float,
    out: torch.Tensor,
    frequencies: torch.Tensor | None = None,
) -> int:
    """Write the values of coded symbols into the contiguous ``out``; return the number of body bytes read.

    Args:
        body: written by ``rans_encode``; other data may follow it.
        mapped: alphabet, low code and escapes; its symbols are ignored.
        step: distance between levels.
        out: receives as many values as there are symbols; undefined after an error.
        frequencies: as in ``rans_decode``.

    Raises:
        CorruptDataError: the body is not one that ``rans_encode`` could have written.
    """
    symbols, nbytes = rans_decode(body, out.numel(), mapped.alphabet, frequencies)
    dequantize_symbols(symbols, mapped, step, out)
    return int(nbytes)
