"""Bits and bytes the slow way, for the brute-force oracles."""

from __future__ import annotations

import torch


def bits_of(body: torch.Tensor | bytes) -> list[int]:
    """Return all bits of the bytes, lowest bit of each byte first."""
    data = body if isinstance(body, bytes) else bytes(body.tolist())
    return [byte >> bit & 1 for byte in data for bit in range(8)]


def number(bits: list[int]) -> int:
    """Return the number whose lowest bit comes first."""
    return sum(bit << place for place, bit in enumerate(bits))


def integers(body: torch.Tensor, start: int, count: int, nbytes: int) -> list[int]:
    """Return ``count`` little-endian unsigned numbers of ``nbytes`` each."""
    data = bytes(body[start : start + count * nbytes].tolist())
    return [int.from_bytes(data[k : k + nbytes], "little") for k in range(0, len(data), nbytes)]


def padded(nbytes: int) -> int:
    """Round up to a multiple of 8."""
    return -(-nbytes // 8) * 8
