"""Lists on a CPU: a fused kernel takes the tensors that fit it in runs; the rest go one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.quantize.grid import Range
from tersor.kernels.runtime.cpu_runs import run_into_scratch, runs_of_equal, split_by_nbytes
from tersor.types import Bound

KernelCall = tuple[Callable[..., None], int, tuple[Any, ...]]
"""A kernel, the maximum size of its payloads together, and its arguments."""
Made = tuple[torch.Tensor, Range | None]
"""A payload, and the range of its tensor if it was computed."""


def encode_in_runs(
    xs: Sequence[torch.Tensor],
    bounds: Sequence[Bound],
    fits: Callable[[torch.Tensor], bool],
    prepare: Callable[[Sequence[torch.Tensor], Bound], KernelCall],
    encode_one: Callable[[int], Made],
) -> EncodedList:
    """Encode the tensors that ``fits`` accepts in runs of one dtype and bound, and the others one by one.

    Args:
        xs: the tensors to encode.
        bounds: one per tensor.
        fits: whether the kernel takes a tensor; it may still fail to code it.
        prepare: returns the kernel call for a run. After its arguments, the kernel receives the ranges to
            fill in, float64 [len(run), 2], and what ``run_into_scratch`` adds. It leaves a size of 0 for
            tensors that it cannot code.
        encode_one: encodes tensor ``k`` without the kernel.
    """
    made: dict[int, Made] = {}
    for run in runs_of_equal(xs, bounds, [k for k, x in enumerate(xs) if fits(x)]):
        kernel, max_nbytes, arguments = prepare([xs[k] for k in run], bounds[run[0]])
        ranges = np.empty((len(run), 2))
        payloads = run_into_scratch(kernel, max_nbytes, len(run), *arguments, ranges)
        found = zip(run, payloads, ranges.tolist(), strict=True)
        made |= {k: (one, (low, high)) for k, one, (low, high) in found if len(one)}
    parts = [made[k] if k in made else encode_one(k) for k in range(len(xs))]
    return EncodedList.apart([one[0] for one in parts], xs, [one[1] for one in parts])


def decode_in_runs(
    outs: Sequence[torch.Tensor],
    payloads: Sequence[torch.Tensor],
    fits: Callable[[torch.Tensor], bool],
    decode_run: Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], Sequence[bool]],
    decode_one: Callable[[int], None],
) -> None:
    """Decode into the tensors that ``fits`` accepts in runs of one dtype, and the others one by one.

    ``decode_run`` returns, for each tensor, whether its kernel decoded it.
    """
    left = set(range(len(outs)))
    for run in split_by_nbytes(outs, [k for k, out in enumerate(outs) if fits(out)]):
        done = decode_run([outs[k] for k in run], [payloads[k] for k in run])
        left.difference_update(k for k, is_done in zip(run, done, strict=True) if is_done)
    for k in sorted(left):
        decode_one(k)
