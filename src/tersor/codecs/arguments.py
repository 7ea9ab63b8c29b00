"""Tensors and payloads as codecs take and return them: checks, and copies where the memory layout demands one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tersor.chunks import MAX_CHUNK_VALUES
from tersor.errors import CorruptDataError, SpecError
from tersor.kernels.payload.layout import MAX_VALUES_PER_BYTE_LOG2
from tersor.kernels.runtime.tensor_guard import are_plain
from tersor.kernels.runtime.threads import fork_safe
from tersor.raw_bytes import empty
from tersor.types import TensorInfo


@fork_safe
def materialised(x: torch.Tensor) -> torch.Tensor:
    """Return ``x`` detached and contiguous, with lazy negation and conjugation resolved."""
    # most tensors need none of this, and testing takes half the time of four calls without effect
    plain = x.detach() if x.requires_grad else x
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    return plain if plain.is_contiguous() else plain.contiguous()


def all_materialised(xs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Return every tensor ``materialised``; most lists need no change."""
    return xs if are_plain(xs) else [materialised(x) for x in xs]


def check_num_values(num_values: int) -> None:
    """Raise ``SpecError`` if one payload cannot hold ``num_values`` values."""
    if num_values > MAX_CHUNK_VALUES:
        raise SpecError(f"one payload holds at most {MAX_CHUNK_VALUES} values; use pack")


def check_chunk_values(chunk_values: int) -> None:
    """Raise ``SpecError`` unless ``chunk_values`` is a number of values that one payload can hold."""
    if type(chunk_values) is not int or not 1 <= chunk_values <= MAX_CHUNK_VALUES:
        raise SpecError(f"chunk_values must be from 1 to {MAX_CHUNK_VALUES}, not {chunk_values}")


def checked_payload(payload: torch.Tensor) -> torch.Tensor:
    """Return ``payload`` aligned so that its parts can be viewed as wider numbers; a copy if necessary."""
    check_payload_size(payload, 0)
    in_place = payload.is_contiguous() and payload.storage_offset() % 8 == 0
    return payload if in_place and payload.data_ptr() % 8 == 0 else payload.clone()


def check_payload_size(payload: torch.Tensor, num_values: int) -> None:
    """Raise ``CorruptDataError`` for a payload too small for its values, before any output is allocated."""
    if payload.dtype != torch.uint8 or payload.dim() != 1:
        raise CorruptDataError("a payload must be a one-dimensional uint8 tensor")
    if payload.numel() < num_values >> MAX_VALUES_PER_BYTE_LOG2:
        raise CorruptDataError(
            f"a payload of {payload.numel()} bytes cannot hold {num_values} values"
        )


def checked_out(out: torch.Tensor | None, info: TensorInfo, device: torch.device) -> torch.Tensor:
    """Return a contiguous tensor to decode into: ``out`` itself, or a new tensor.

    Raises:
        SpecError: ``out`` has another dtype, shape or device, or cannot be written to.
    """
    if out is None:
        return empty(info.shape, info.dtype, device)
    if tuple(out.shape) != info.shape or out.dtype != info.dtype or out.device != device:
        raise SpecError(
            f"out must be {info.dtype} of shape {info.shape} on {device}, "
            f"not {out.dtype} of shape {tuple(out.shape)} on {out.device}"
        )
    if any(size > 1 and step == 0 for size, step in zip(out.shape, out.stride(), strict=True)):
        raise SpecError("out must not be an expanded tensor, whose values share memory")
    if out.requires_grad:
        raise SpecError("out must not require a gradient; give out.detach()")
    if out.is_neg() or out.is_conj():
        raise SpecError(
            "out must hold its values as they are; give out.resolve_neg().resolve_conj()"
        )
    return out if out.is_contiguous() else empty(info.shape, info.dtype, device)


@fork_safe
def copy_if_strided(target: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Copy the decoded values into ``out`` if decoding could not write there directly; return ``out``."""
    return out if target is out else out.copy_(target)
