"""The tensors that benchmarks on an accelerator run on, generated there from fixed seeds.

They follow the same distributions as those of ``tersor.bench.core.inputs``, at sizes that fill an
accelerator, and use its random number generator. All functions work on the CPU too.

Inputs whose names begin with ``tensor`` are a single tensor, as a user compresses it. ``lookups-N`` are the
look-ups of a batch of N.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import torch

from tersor.bench.core.inputs import (
    ACTIVATION_MEAN,
    ACTIVATION_SHARE,
    CRITEO_KAGGLE_ROWS,
    EMBEDDING_DIM,
    GRADIENT_DEVIATION,
    MAX_TABLE_ROWS,
    ZIPF_EXPONENT,
    BenchInput,
    activations_shape,
    bounds_of,
    field,
    gradients_shape,
)
from tersor.errors import SpecError

DEVICE_INPUTS: Final = (
    "tensor", "tensor-bf16", "tensor-f16", "tensor-field", "lookups-2048", "lookups-256", "chunks",
    "embeddings", "gradients", "activations", "field",
)  # fmt: skip
DEVICE_SIZES: Final = (64 * 2**20, 2**30)
_SAMPLE_NBYTES: Final = len(CRITEO_KAGGLE_ROWS) * EMBEDDING_DIM * 4
EMBEDDINGS_NBYTES: Final = 65536 * _SAMPLE_NBYTES
_CHUNK_ROWS: Final = 64
_NUM_DESTINATIONS: Final = 8
CHUNKS_NBYTES: Final = _NUM_DESTINATIONS * _CHUNK_ROWS * _SAMPLE_NBYTES
TENSOR_VALUES: Final = 2**26
_OWN_NBYTES: Final = {
    "tensor": 4 * TENSOR_VALUES,
    "tensor-bf16": 2 * TENSOR_VALUES,
    "tensor-f16": 2 * TENSOR_VALUES,
    "tensor-field": 4 * TENSOR_VALUES,
    "lookups-2048": 2048 * _SAMPLE_NBYTES,
    "lookups-256": 256 * _SAMPLE_NBYTES,
    "chunks": CHUNKS_NBYTES,
    "embeddings": EMBEDDINGS_NBYTES,
}
"""Sizes of the inputs that have a fixed size; all others have the requested sizes."""
TENSOR_BOUND: Final = 1e-3
_LISTS_BOUND: Final = 0.03


def sizes_of(name: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes at which an input is measured: its fixed size, or else all of ``sizes``.

    A fixed size is reduced to the largest of ``sizes`` if that is smaller.

    Raises:
        SpecError: no input has that name.
    """
    if name not in DEVICE_INPUTS:
        known = ", ".join(DEVICE_INPUTS)
        raise SpecError(f"unknown benchmark input {name!r} for cuda; choose from {known}")
    return (min(_OWN_NBYTES[name], max(sizes)),) if name in _OWN_NBYTES else sizes


def device_bounds_of(name: str) -> tuple[float, ...]:
    """Return the default relative bounds for one of ``DEVICE_INPUTS``."""
    if name.startswith("tensor"):
        return (TENSOR_BOUND,)
    return (_LISTS_BOUND,) if name == "chunks" or name.startswith("lookups") else bounds_of(name)


def make_device_input(name: str, nbytes: int, device: torch.device) -> BenchInput:
    """Generate one of ``DEVICE_INPUTS`` with about ``nbytes`` bytes on ``device``."""
    return BenchInput(name, _MAKERS[name](nbytes, device))


def _embeddings(nbytes: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Generate the rows that one batch looks up in the 26 Criteo-Kaggle tables, a slice per table.

    At full size, a batch has 65536 samples, and about 13 % of the rows of a slice are distinct.
    """
    generator = torch.Generator(device).manual_seed(1)
    batch = max(1, nbytes // (len(CRITEO_KAGGLE_ROWS) * EMBEDDING_DIM * 4))
    slices = []
    for table_rows in CRITEO_KAGGLE_ROWS:
        num_rows = min(table_rows, MAX_TABLE_ROWS)
        ranks = torch.arange(1, num_rows + 1, dtype=torch.float64, device=device)
        cumulative = (ranks**-ZIPF_EXPONENT).cumsum(0)
        draws = torch.rand(batch, dtype=torch.float64, generator=generator, device=device)
        ids = torch.searchsorted(cumulative, draws * cumulative[-1]).clamp(max=num_rows - 1)
        used, inverse = torch.unique(ids, return_inverse=True)
        weights = torch.randn((len(used), EMBEDDING_DIM), generator=generator, device=device)
        slices.append((weights * math.sqrt(1 / num_rows))[inverse])
    return tuple(slices)


def _chunks(nbytes: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Generate the same rows, split into chunks of at most 64 rows for each rank.

    At full size, there are eight ranks with a batch of 64 each.
    """
    return tuple(chunk for rows in _embeddings(nbytes, device) for chunk in rows.split(_CHUNK_ROWS))


def _gradients(nbytes: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator(device).manual_seed(2)
    values = torch.randn(gradients_shape(nbytes), generator=generator, device=device)
    return (values.mul_(GRADIENT_DEVIATION),)


def _activations(nbytes: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator(device).manual_seed(3)
    noise = torch.randn(nbytes // 4 + 1, generator=generator, device=device)
    values = noise[1:].add(noise[:-1], alpha=ACTIVATION_SHARE).add_(ACTIVATION_MEAN).relu_()
    return (values.view(activations_shape(nbytes)),)


def _field(nbytes: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    return field(nbytes, device).slices


def _narrow(dtype: torch.dtype) -> _Maker:
    """Return a function that generates ``gradients`` in a two-byte dtype."""

    def make(nbytes: int, device: torch.device) -> tuple[torch.Tensor, ...]:
        return tuple(x.to(dtype) for x in _gradients(2 * nbytes, device))

    return make


_Maker = Callable[[int, torch.device], tuple[torch.Tensor, ...]]
_MAKERS: Final[Mapping[str, _Maker]] = {
    "tensor": _gradients,
    "tensor-bf16": _narrow(torch.bfloat16),
    "tensor-f16": _narrow(torch.float16),
    "tensor-field": _field,
    "lookups-2048": _embeddings,
    "lookups-256": _embeddings,
    "chunks": _chunks,
    "embeddings": _embeddings,
    "gradients": _gradients,
    "activations": _activations,
    "field": _field,
}
