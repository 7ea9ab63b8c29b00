"""Measure bytes, memory and gradients of one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch

from tersor.bench.activations.case import Case, Forward, deterministic
from tersor.bench.activations.counting import counting_saved
from tersor.bench.core.blocks import Memory
from tersor.bench.core.resident import (
    peak_resident_nbytes,
    reset_peak_resident,
    resident_nbytes,
)
from tersor.raw_bytes import as_bytes

MALLOC_ENVIRONMENT: Final = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Environment in which glibc returns freed tensors at once, so that resident memory is what is held."""


class Held(NamedTuple):
    """Bytes held for backward: of all tensors, and of floating-point tensors."""

    nbytes: int
    floats_nbytes: int


def counted(case: Case, forward: Forward) -> Held:
    """Return what a forward pass saves, except what the loss saves."""
    found: list[Held] = []

    def watched(*batch: Any) -> torch.Tensor:
        with counting_saved(case.model, case.given) as count:
            outputs = forward(*batch)
        found.append(Held(count.nbytes, count.floats_nbytes))
        return outputs

    case.forward(watched)
    return found[0]


def exact_gradients(case: Case, forward: Forward) -> list[torch.Tensor]:
    """Return the gradients of a step, bit-reproducible where torch has deterministic algorithms."""
    with deterministic():
        return case.gradients(forward)


def weights_among(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the gradients that count for the score: those of weights, not of biases and norms."""
    return [g for g in gradients if g.dim() > 1]


def are_equal(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> bool:
    """Return whether all gradients are equal, bit for bit."""
    return all(torch.equal(as_bytes(x), as_bytes(y)) for x, y in zip(first, second, strict=True))


def step_memory(case: Case, forward: Forward) -> Memory:
    """Measure the memory of a step beyond what was allocated before it, after a warm-up step.

    On CUDA, this uses the allocator's counters. On the CPU, it uses the resident memory of the process.
    Nothing else may then run in the process, and ``MALLOC_ENVIRONMENT`` must be in its environment.
    """
    case.step(forward)
    return _device_memory(case, forward) if case.device.type == "cuda" else _resident(case, forward)


def _device_memory(case: Case, forward: Forward) -> Memory:
    case.clear_gradients()
    torch.cuda.synchronize(case.device)
    before = torch.cuda.memory_allocated(case.device)
    torch.cuda.reset_peak_memory_stats(case.device)
    loss = case.forward(forward)
    torch.cuda.synchronize(case.device)
    held = torch.cuda.memory_allocated(case.device) - before
    loss.backward()
    torch.cuda.synchronize(case.device)
    peak = torch.cuda.max_memory_allocated(case.device) - before
    return Memory(held_nbytes=max(0, held), peak_nbytes=max(0, peak))


def _resident(case: Case, forward: Forward) -> Memory:
    case.clear_gradients()
    reset_peak_resident()
    before = resident_nbytes()
    loss = case.forward(forward)
    held = resident_nbytes() - before
    loss.backward()
    peak = peak_resident_nbytes() - before
    return Memory(held_nbytes=max(0, held), peak_nbytes=max(0, peak))
