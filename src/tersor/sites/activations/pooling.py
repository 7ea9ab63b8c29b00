"""Indices of max-pooling, stored as positions in their windows: 2 bits instead of 64 for a window of 2 by 2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import Any, Final, NamedTuple

import torch

from tersor.sites.activations.forms import BitFields

_ARGUMENTS: Final = ("input", "kernel_size", "stride", "padding", "dilation")
_INDICES_PER_CALL: Final = 1 << 20
"""Chunk size: intermediate results take up to six times the 8 bytes of an index."""
_INDICES_PER_GPU_CALL: Final = 1 << 24
"""Chunk size on a GPU: calls on a million indices took the host of an H200 longer than the device."""


class PoolingWindows(NamedTuple):
    """The windows of a pooling over its input, per dimension.

    Attributes:
        kernel: size of a window.
        stride: distance between windows.
        padding: padding on each side.
        dilation: distance between the elements of a window.
        extent: size of the input.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    extent: tuple[int, ...]

    @classmethod
    def of_call(
        cls, num_dims: int, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> PoolingWindows | None:
        """Return the windows of a max-pooling call; None if its arguments are not understood or irregular.

        Args:
            num_dims: number of dimensions that are pooled.
            args: positional arguments of the call.
            kwargs: named arguments of the call.
        """
        given = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
        x, kernel = given.get("input"), given.get("kernel_size")
        if not isinstance(x, torch.Tensor) or kernel is None or x.dim() < num_dims:
            return None
        stride = given.get("stride")
        windows = cls(
            _tuple(kernel, num_dims),
            # torch defaults a missing or empty stride to the kernel size
            _tuple(stride if stride not in (None, [], ()) else kernel, num_dims),
            _tuple(given.get("padding", 0), num_dims),
            _tuple(given.get("dilation", 1), num_dims),
            tuple(x.shape[-num_dims:]),
        )
        return windows if windows._are_regular() else None

    def _are_regular(self) -> bool:
        """True if every window is smaller than the unpadded input, so that a distance determines a position."""
        spans = ((size - 1) * step for size, step in zip(self.kernel, self.dilation, strict=True))
        return all(span < size for span, size in zip(spans, self.extent, strict=True))

    @property
    def num_places(self) -> int:
        """Number of positions in a window."""
        count = 1
        for size in self.kernel:
            count *= size
        return count

    def places(self, indices: torch.Tensor) -> torch.Tensor:
        """Return the position of each index in its window, as int32."""
        distance = (indices - self._origins(indices.shape, indices.device)).to(torch.int32)
        place = torch.zeros_like(distance)
        for size, row, step in zip(self.kernel, _volumes(self.extent), self.dilation, strict=True):
            offset = distance if row * step == 1 else distance // (row * step)
            place = torch.add(offset, place, alpha=size)
            distance = torch.sub(distance, offset, alpha=row * step)
        return place

    def indices(self, places: torch.Tensor) -> torch.Tensor:
        """Return the indices of positions, as int64; the inverse of ``places``."""
        distance, rest = torch.zeros_like(places), places
        volumes = zip(_volumes(self.kernel), _volumes(self.extent), self.dilation, strict=True)
        for volume, row, step in volumes:
            offset = rest if volume == 1 else rest // volume
            distance = torch.add(distance, offset, alpha=row * step)
            rest = torch.sub(rest, offset, alpha=volume)
        return distance + self._origins(places.shape, places.device)

    def _origins(self, shape: torch.Size, device: torch.device) -> torch.Tensor:
        """Return the index at which each window begins, as int64; outside the input in the padding."""
        num_dims, rows = len(self.extent), _volumes(self.extent)
        origins = torch.zeros([1] * num_dims, dtype=torch.int64, device=device)
        for k, row in enumerate(rows):
            begin = torch.arange(shape[k - num_dims], dtype=torch.int64, device=device)
            begin = (begin * self.stride[k] - self.padding[k]) * row
            origins = origins + begin.view(-1, *[1] * (num_dims - 1 - k))
        return origins


def _volumes(sizes: Sequence[int]) -> list[int]:
    """Return the strides of a contiguous tensor of these sizes."""
    return list(accumulate(reversed(sizes[1:]), mul, initial=1))[::-1]


class PoolIndices(NamedTuple):
    """Indices of a pooling, stored exactly as positions in their windows.

    Attributes:
        places: packed positions.
        shape: shape of the indices.
        windows: windows of the pooling.
        permutation: dimensions of the indices, outermost in memory first.
    """

    places: BitFields
    shape: tuple[int, ...]
    windows: PoolingWindows
    permutation: tuple[int, ...]

    @classmethod
    def of(cls, indices: torch.Tensor, windows: PoolingWindows) -> PoolIndices | None:
        """Return the form of dense int64 ``indices``; None for windows of more than 65536 positions."""
        if windows.num_places > 2**16 or indices.dim() < len(windows.extent):
            return None
        permutation = tuple(sorted(range(indices.dim()), key=indices.stride, reverse=True))
        parts = [windows.places(part) for part in _parts(indices)]
        places = torch.cat(parts)
        flat = places.permute(permutation).reshape(-1)
        fields = BitFields.of(flat, windows.num_places - 1)
        return cls(fields, tuple(indices.shape), windows, permutation)

    @property
    def nbytes(self) -> int:
        """See ``Form``."""
        return self.places.nbytes

    def restored(self) -> torch.Tensor:
        """See ``Form``."""
        sizes = [self.shape[k] for k in self.permutation]
        back = [self.permutation.index(k) for k in range(len(sizes))]
        places = self.places.restored().view(sizes).permute(back)
        out = torch.empty_like(places, dtype=torch.int64)
        start = 0
        for part in _parts(places):
            out[start : start + len(part)] = self.windows.indices(part)
            start += len(part)
        return out.permute(self.permutation).reshape(-1)


def _parts(x: torch.Tensor) -> Sequence[torch.Tensor]:
    """Split along the first dimension, to bound the memory of intermediate results."""
    per_call = _INDICES_PER_GPU_CALL if x.is_cuda else _INDICES_PER_CALL
    rows = max(1, per_call * len(x) // max(1, x.numel()))
    parts: Sequence[torch.Tensor] = x.split(rows)
    return parts


def _tuple(value: Any, num_dims: int) -> tuple[int, ...]:
    sizes = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return tuple(int(size) for size in (sizes * num_dims if len(sizes) == 1 else sizes))
