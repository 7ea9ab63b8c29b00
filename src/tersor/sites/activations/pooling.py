"""Indices of max-pooling as places in their windows: 2 bits for a window of 2 by 2, not 64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch

from tersor.sites.activations.forms import Fields

_ARGUMENTS: Final = ("input", "kernel_size", "stride", "padding", "dilation")
_INDICES_PER_CALL: Final = 1 << 20


class Windows(NamedTuple):
    """Where the windows of a pooling lie in its input, per dimension."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    extent: tuple[int, ...]

    @classmethod
    def of_call(
        cls, num_dims: int, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Windows | None:
        """Return the windows of a call of ``max_pool2d`` or its kin; None if its arguments are unclear."""
        given = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
        x, kernel = given.get("input"), given.get("kernel_size")
        if not isinstance(x, torch.Tensor) or kernel is None or x.dim() < num_dims:
            return None
        stride = given.get("stride")
        return cls(
            _tuple(kernel, num_dims),
            # torch takes no stride and an empty one for that of the kernel
            _tuple(stride if stride not in (None, [], ()) else kernel, num_dims),
            _tuple(given.get("padding", 0), num_dims),
            _tuple(given.get("dilation", 1), num_dims),
            tuple(x.shape[-num_dims:]),
        )

    @property
    def num_places(self) -> int:
        """Places in one window."""
        count = 1
        for size in self.kernel:
            count *= size
        return count

    def places(self, indices: torch.Tensor) -> torch.Tensor:
        """Return the place of each index in its window."""
        place = torch.zeros_like(indices)
        for at, origin, k in self._coordinates(indices):
            place = place * self.kernel[k] + (at - origin) // self.dilation[k]
        return place

    def indices(self, places: torch.Tensor) -> torch.Tensor:
        """Return what ``places`` was made of."""
        offsets = []
        for size in reversed(self.kernel):
            offsets.append(places % size)
            places = places // size
        index = torch.zeros_like(places)
        for k, offset in enumerate(reversed(offsets)):
            at = self._origin(offset, k) + offset * self.dilation[k]
            index = index * self.extent[k] + at
        return index

    def _coordinates(self, indices: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor, int]]:
        """Return per dimension, outermost first, where an index points and where its window begins."""
        found = []
        for k in reversed(range(len(self.extent))):
            found.append((indices % self.extent[k], self._origin(indices, k), k))
            indices = indices // self.extent[k]
        return found[::-1]

    def _origin(self, like: torch.Tensor, k: int) -> torch.Tensor:
        """Return where windows begin along dimension ``k``, to be broadcast over the output."""
        num_dims = len(self.extent)
        outputs = torch.arange(like.shape[k - num_dims], device=like.device, dtype=like.dtype)
        begin = outputs * self.stride[k] - self.padding[k]
        return begin.view(-1, *[1] * (num_dims - 1 - k))


class PoolIndices(NamedTuple):
    """Indices of a pooling, each as its place in its window: exact.

    Attributes:
        places: packed.
        shape: of the indices.
        windows: of the pooling.
        permutation: dimensions in the order of memory.
    """

    places: Fields
    shape: tuple[int, ...]
    windows: Windows
    permutation: tuple[int, ...]

    @classmethod
    def of(cls, indices: torch.Tensor, windows: Windows) -> PoolIndices | None:
        """Return the form of int64 ``indices``, dense in memory; None if places cannot stand for them."""
        if windows.num_places > 2**16 or indices.dim() < len(windows.extent):
            return None
        permutation = tuple(sorted(range(indices.dim()), key=indices.stride, reverse=True))
        parts = [windows.places(part) for part in _parts(indices)]
        places = torch.cat([part.to(torch.int32) for part in parts])
        flat = places.permute(permutation).reshape(-1)
        fields = Fields.of(flat, windows.num_places - 1)
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
            out[start : start + len(part)] = self.windows.indices(part.long())
            start += len(part)
        return out.permute(self.permutation).reshape(-1)


def _parts(x: torch.Tensor) -> Sequence[torch.Tensor]:
    """Cut along the first dimension, so that what is computed of a part takes little memory."""
    rows = max(1, _INDICES_PER_CALL * len(x) // max(1, x.numel()))
    parts: Sequence[torch.Tensor] = x.split(rows)
    return parts


def _tuple(value: Any, num_dims: int) -> tuple[int, ...]:
    sizes = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return tuple(int(size) for size in (sizes * num_dims if len(sizes) == 1 else sizes))
