"""Quantized lists of tensors on a device, for peers that have no quantizer of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from tersor.bench.core.codes import code_dtype
from tersor.errors import BackendUnavailableError
from tersor.kernels.quantize import Grid

_STEP_NBYTES: Final = 8


@dataclass(frozen=True, slots=True)
class QuantizedList:
    """The codes of several tensors in one buffer.

    Attributes:
        codes: int8 or int16 codes; empty if a payload replaces them.
        num_codes: length of the buffer.
        starts: index of the first code of each tensor.
        numels: number of codes of each tensor.
        grids: the tensors' quantization steps, on the device.
    """

    codes: torch.Tensor
    num_codes: int
    starts: tuple[int, ...]
    numels: tuple[int, ...]
    grids: torch.Tensor

    @property
    def side_nbytes(self) -> int:
        """Bytes that a file needs in addition to the codes: one step per tensor."""
        return _STEP_NBYTES * len(self.numels)

    def parts(self) -> list[torch.Tensor]:
        """Return the codes of each tensor, as views."""
        pairs = zip(self.starts, self.numels, strict=True)
        return [self.codes[start : start + numel] for start, numel in pairs]

    def without_codes(self) -> QuantizedList:
        """Return a copy without the codes, with what has to accompany a compressed payload."""
        return replace(self, codes=self.codes[:0].clone())

    def with_room(self) -> QuantizedList:
        """Return a copy with an uninitialised buffer for the codes."""
        return replace(self, codes=self.codes.new_empty(self.num_codes))

    def dequantize(self, outs: Sequence[torch.Tensor]) -> None:
        """Decode the codes into ``outs`` without synchronising with the device."""
        _kernels().dequantize_list(self.codes, self.grids, outs)


class ListQuantizer:
    """Quantizes lists, and caches what it learns from the first list with the same bounds.

    It caches the width of the codes, which a codec would know from the bound. It also assumes that every
    value of later lists has a code, because the benchmarks repeat the same inputs.
    """

    def __init__(self) -> None:
        """Start with an empty cache."""
        self._dtypes: dict[tuple[float, ...], torch.dtype] = {}

    def quantize(
        self,
        xs: Sequence[torch.Tensor],
        error_bounds: Sequence[float],
        dtype: torch.dtype | None = None,
    ) -> QuantizedList:
        """Quantize all tensors; later calls with the same bounds do not synchronise with the device.

        Args:
            xs: floating-point tensors of one dtype.
            error_bounds: absolute bound of each tensor.
            dtype: dtype of the codes; by default the narrowest that holds all of them.

        Raises:
            BackendUnavailableError: Triton is missing, or a value has no code that keeps the bound.
            SpecError: a code does not fit ``dtype``.
        """
        bounds, numels = tuple(error_bounds), tuple(x.numel() for x in xs)
        is_known = bounds in self._dtypes
        if not is_known:
            self._dtypes[bounds] = _dtype_of(xs, bounds, dtype)
        made = _kernels().quantize_list(xs, bounds, self._dtypes[bounds])
        if not is_known and int(made.num_outliers):
            narrow = str(self._dtypes.pop(bounds)).removeprefix("torch.")
            raise BackendUnavailableError(
                f"{int(made.num_outliers)} values of {str(xs[0].dtype).removeprefix('torch.')} have "
                f"no {narrow} code that keeps the bound"
            )
        return QuantizedList(made.codes, made.codes.numel(), made.starts, numels, made.grids)


def _dtype_of(
    xs: Sequence[torch.Tensor], error_bounds: Sequence[float], asked: torch.dtype | None
) -> torch.dtype:
    found = set()
    for x, error_bound in zip(xs, error_bounds, strict=True):
        grid = Grid.for_bound(error_bound, x.dtype)
        if grid is None:
            raise BackendUnavailableError(f"an error bound of {error_bound} has no codes")
        found.add(code_dtype(x, grid, asked))
    return torch.int16 if torch.int16 in found else torch.int8


def _kernels() -> Any:
    try:
        from tersor.kernels.quantize.gpu import code_list as gpu
    except ImportError as error:
        raise BackendUnavailableError(f"quantizing lists needs triton: {error}") from error
    return gpu
