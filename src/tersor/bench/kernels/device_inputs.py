"""The tensors that benchmarks on an accelerator run on, made there from fixed seeds.

They follow the same laws as those of ``tersor.bench.core.inputs``, at the sizes that fill an
accelerator, and with its own random numbers. All functions work on the CPU too.
"""

from __future__ import annotations

import math
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

DEVICE_INPUTS: Final = ("embeddings", "chunks", "gradients", "activations", "field")
DEVICE_SIZES: Final = (64 * 2**20, 2**30)
_FULL_BATCH: Final = 65536
EMBEDDINGS_NBYTES: Final = len(CRITEO_KAGGLE_ROWS) * _FULL_BATCH * EMBEDDING_DIM * 4
_CHUNK_ROWS: Final = 64
_NUM_DESTINATIONS: Final = 8
CHUNKS_NBYTES: Final = len(CRITEO_KAGGLE_ROWS) * _NUM_DESTINATIONS * _CHUNK_ROWS * EMBEDDING_DIM * 4
_CHUNKS_BOUNDS: Final = (0.03,)


def sizes_of(name: str, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes at which an input is measured: look-ups have one, others all of ``sizes``.

    The size of look-ups is reduced if ``sizes`` are all smaller.

    Raises:
        SpecError: no input has that name.
    """
    if name not in DEVICE_INPUTS:
        known = ", ".join(DEVICE_INPUTS)
        raise SpecError(f"unknown benchmark input {name!r} for cuda; choose from {known}")
    if name == "chunks":
        return (min(CHUNKS_NBYTES, max(sizes)),)
    if name != "embeddings":
        return sizes
    return (EMBEDDINGS_NBYTES,) if max(sizes) >= DEVICE_SIZES[0] else (max(sizes),)


def device_bounds_of(name: str) -> tuple[float, ...]:
    """Return the relative bounds worth measuring on one of ``DEVICE_INPUTS``."""
    return _CHUNKS_BOUNDS if name == "chunks" else bounds_of(name)


def make_device_input(name: str, nbytes: int, device: torch.device) -> BenchInput:
    """Make one of ``DEVICE_INPUTS`` with about ``nbytes`` bytes on ``device``."""
    if name == "field":
        return field(nbytes, device)
    makers = {
        "embeddings": _embeddings,
        "chunks": _chunks,
        "gradients": _gradients,
        "activations": _activations,
    }
    return BenchInput(name, makers[name](nbytes, device))


def _embeddings(nbytes: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Make the rows that one batch looks up in the 26 Criteo-Kaggle tables, a slice per table.

    At full size a batch has 65536 samples, so that about 13 % of the rows of a slice are distinct.
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
    """Make the same, cut into what goes to each of the ranks: at most 64 rows.

    At full size there are eight ranks and a batch of 64 for each of them.
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
