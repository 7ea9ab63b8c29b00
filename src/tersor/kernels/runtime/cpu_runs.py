"""Cut lists of CPU tensors into runs, each of which is handled by one kernel call.

Between two kernel calls a thread waits for the interpreter lock, as does every other thread. With
one call per tensor of 512 KiB that took half of the encoding time, and two threads were as slow as one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from tersor.kernels.runtime.scratch import scratch

_RUN_NBYTES: Final = 1 << 23
"""Small enough that the payloads of a run stay in the second-level cache until they are copied out."""


EMPTY: Final[Mapping[torch.dtype, Any]] = {
    torch.float32: np.empty(0, dtype=np.float32),
    torch.float64: np.empty(0, dtype=np.float64),
}
"""Arrays that tell a kernel the dtype of the values at an address."""


def split_by_nbytes(tensors: Sequence[torch.Tensor], places: Iterable[int]) -> Iterator[list[int]]:
    """Cut indices into a list of tensors into runs of one dtype and at most 8 MiB (or a single tensor)."""
    run: list[int] = []
    nbytes = 0
    for k in places:
        nbytes += tensors[k].nbytes
        if run and (nbytes > _RUN_NBYTES or tensors[k].dtype != tensors[run[0]].dtype):
            yield run
            run, nbytes = [], tensors[k].nbytes
        run.append(k)
    if run:
        yield run


def runs_of_equal(
    tensors: Sequence[torch.Tensor], options: Sequence[Hashable], places: Iterable[int]
) -> Iterator[list[int]]:
    """Cut indices as ``split_by_nbytes`` does, with equal options throughout each run."""
    groups: dict[Hashable, list[int]] = {}
    for k in places:
        groups.setdefault(options[k], []).append(k)
    for group in groups.values():
        yield from split_by_nbytes(tensors, group)


def addresses_of(tensors: Sequence[torch.Tensor]) -> Any:
    """Return the address of each tensor's first value as uint64; the tensors must outlive its use."""
    return np.array([x.data_ptr() for x in tensors], dtype=np.uint64)


def run_into_scratch(
    kernel: Callable[..., None], max_nbytes: int, num_parts: int, *arguments: Any
) -> list[torch.Tensor]:
    """Call ``kernel(*arguments, target, sizes)`` and return the parts it wrote back to back.

    The kernel writes into ``target``, which has ``max_nbytes`` bytes, and stores the length of each
    part in ``sizes`` (int64). The returned parts are views of one new buffer.
    """
    target, sizes = scratch(max_nbytes), np.zeros(num_parts, dtype=np.int64)
    kernel(*arguments, target, sizes)
    return list(torch.from_numpy(target[: sizes.sum()].copy()).split(sizes.tolist()))
