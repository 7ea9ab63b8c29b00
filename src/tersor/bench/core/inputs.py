"""The tensors that benchmarks run on, generated from fixed seeds.

Each input is a list of slices. Each slice is encoded separately with its own bound, as the site that
moves such tensors would do. Ratios are computed over the bytes of all slices together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from tersor.errors import SpecError

FULL_NBYTES: Final = 64 * 2**20
SMOKE_NBYTES: Final = 2**20

# Rows of the 26 categorical tables of Criteo Kaggle, in table order.
CRITEO_KAGGLE_ROWS: Final = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
MAX_TABLE_ROWS: Final = 10**6
ZIPF_EXPONENT: Final = 1.05
GRADIENT_DEVIATION: Final = 1e-3
ACTIVATION_SHARE: Final = 0.25
ACTIVATION_MEAN: Final = 0.01253 * math.sqrt(1 + ACTIVATION_SHARE**2)
"""The mean at which 49.5 % of a normal distribution of this width is below zero."""
EMBEDDING_BATCH: Final = 2048
EMBEDDING_DIM: Final = 64
DEFAULT_BOUNDS: Final = (0.01, 0.03, 0.05)
FIELD_BOUNDS: Final = (0.001, *DEFAULT_BOUNDS)


@dataclass(frozen=True, slots=True)
class BenchInput:
    """A named list of float32 slices on one device."""

    name: str
    slices: tuple[torch.Tensor, ...]

    @property
    def num_values(self) -> int:
        """Number of values in all slices."""
        return sum(x.numel() for x in self.slices)

    @property
    def nbytes(self) -> int:
        """Uncompressed size of all slices in bytes."""
        return sum(x.nbytes for x in self.slices)


def embeddings(nbytes: int = FULL_NBYTES, dim: int = EMBEDDING_DIM) -> BenchInput:
    """Generate the rows that batches of 2048 samples look up in the 26 Criteo-Kaggle tables.

    Ids follow a Zipf law with exponent 1.05 over at most a million rows per table. Weights are
    normally distributed, with the variance of DLRM's initialisation. Slice ``i`` is table ``i % 26`` at
    iteration ``i // 26``. At 64 MiB, 28 % of the rows of a slice are distinct on average.
    """
    num_slices = max(1, nbytes // (EMBEDDING_BATCH * dim * 4))
    slices: list[torch.Tensor | None] = [None] * num_slices
    num_tables = len(CRITEO_KAGGLE_ROWS)
    for table in range(min(num_tables, num_slices)):
        rng = np.random.default_rng((1, table))
        num_rows = min(CRITEO_KAGGLE_ROWS[table], MAX_TABLE_ROWS)
        iterations = range(table, num_slices, num_tables)
        ids = _zipf_ids(rng, num_rows, len(iterations) * EMBEDDING_BATCH)
        used, inverse = np.unique(ids, return_inverse=True)
        scale = np.float32(math.sqrt(1 / num_rows))
        weights = rng.standard_normal((len(used), dim), dtype=np.float32) * scale
        for index, rows in zip(iterations, inverse.reshape(-1, EMBEDDING_BATCH), strict=True):
            slices[index] = torch.from_numpy(weights[rows])
    name = "embeddings" if dim == EMBEDDING_DIM else f"embeddings-dim{dim}"
    return BenchInput(name, tuple(x for x in slices if x is not None))


def _zipf_ids(rng: np.random.Generator, num_rows: int, num_ids: int) -> np.ndarray:
    cumulative = np.cumsum(np.arange(1, num_rows + 1, dtype=np.float64) ** -ZIPF_EXPONENT)
    draws = rng.random(num_ids) * cumulative[-1]
    ids: np.ndarray = np.searchsorted(cumulative, draws, side="right")
    return ids


def gradients(nbytes: int = FULL_NBYTES) -> BenchInput:
    """Generate one matrix of normally distributed values with standard deviation 1e-3."""
    values = np.random.default_rng(2).standard_normal(nbytes // 4, dtype=np.float32)
    values *= np.float32(GRADIENT_DEVIATION)
    return BenchInput("gradients", (torch.from_numpy(values).view(gradients_shape(nbytes)),))


def gradients_shape(nbytes: int) -> tuple[int, int]:
    """Return the shape of ``gradients``."""
    side = 2 ** ((nbytes // 4).bit_length() // 2)
    return (nbytes // 4 // side, side)


def activations(nbytes: int = FULL_NBYTES) -> BenchInput:
    """Generate the ReLU of mildly correlated noise, ``[batch, channel, height, width]``.

    Neighbours along the width share a quarter of their noise; 49.5 % of the values are zero.
    """
    noise = np.random.default_rng(3).standard_normal(nbytes // 4 + 1, dtype=np.float32)
    values = noise[1:] + np.float32(ACTIVATION_SHARE) * noise[:-1]
    values += np.float32(ACTIVATION_MEAN)
    np.maximum(values, 0, out=values)
    return BenchInput("activations", (torch.from_numpy(values).view(activations_shape(nbytes)),))


def activations_shape(nbytes: int) -> tuple[int, int, int, int]:
    """Return the shape of ``activations``."""
    side = 64 if nbytes >= 2**24 else 16
    return (nbytes // 4 // side**3, side, side, side)


def field(nbytes: int = FULL_NBYTES, device: torch.device | None = None) -> BenchInput:
    """Generate a smooth periodic 3-D field, ``[depth, height, width]``.

    White noise is shaped in the frequency domain to amplitudes that fall as ``k ** -3`` (an energy
    spectrum of ``k ** -4``), as smooth as simulated temperatures and pressures. The field is generated
    on ``device``, by default the CPU, with that device's random number generator.
    """
    num_values = nbytes // 4
    side = 2 ** round(math.log2(num_values) / 3)
    shape = (num_values // side**2, side, side)
    device = device or torch.device("cpu")
    generator = torch.Generator(device).manual_seed(4)
    spectrum = torch.fft.rfftn(torch.randn(shape, generator=generator, device=device))
    depth, height = (torch.fft.fftfreq(n, 1 / n, device=device) for n in shape[:2])
    width = torch.fft.rfftfreq(side, 1 / side, device=device)
    squared = depth[:, None, None] ** 2 + height[:, None] ** 2 + width**2
    squared[0, 0, 0] = math.inf
    values = torch.fft.irfftn(spectrum * squared**-1.5, s=shape)
    values /= values.std()
    return BenchInput("field", (values.contiguous(),))


INPUTS: Final[Mapping[str, Callable[[int], BenchInput]]] = {
    "embeddings": embeddings,
    "embeddings-dim32": lambda nbytes: embeddings(nbytes, dim=32),
    "gradients": gradients,
    "activations": activations,
    "field": field,
}
DEFAULT_INPUTS: Final = ("embeddings", "gradients", "activations", "field")


def bounds_of(name: str) -> tuple[float, ...]:
    """Return the default relative bounds for an input.

    Raises:
        SpecError: no input has that name.
    """
    if name not in INPUTS:
        raise SpecError(f"unknown benchmark input {name!r}; choose from {', '.join(INPUTS)}")
    return FIELD_BOUNDS if name == "field" else DEFAULT_BOUNDS


def make_input(name: str, nbytes: int = FULL_NBYTES) -> BenchInput:
    """Generate the input ``name`` with about ``nbytes`` bytes (a power of two, at least 64 KiB).

    Raises:
        SpecError: no input has that name, or ``nbytes`` is not such a power of two.
    """
    bounds_of(name)
    if nbytes < 2**16 or nbytes & (nbytes - 1):
        raise SpecError(f"input size must be a power of two from 65536 bytes on, not {nbytes}")
    return INPUTS[name](nbytes)
