"""Lists on a CPU: what a fused kernel takes goes in runs, the rest tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from tersor.kernels.batch.encoded_list import EncodedList
from tersor.kernels.quantize.grid import Range
from tersor.kernels.runtime.cpu_runs import runs_of_equal, split_by_nbytes
from tersor.types import Bound

Made = tuple[torch.Tensor, Range | None]
"""A payload, and the range of its tensor if that was found."""


def encode_in_runs(
    xs: Sequence[torch.Tensor],
    bounds: Sequence[Bound],
    fits: Callable[[torch.Tensor], bool],
    encode_run: Callable[[Sequence[torch.Tensor], Bound], Sequence[Made]],
    encode_one: Callable[[int], Made],
) -> EncodedList:
    """Encode tensors that ``fits`` holds for in runs of one dtype and bound, and the others one by one.

    ``encode_run`` returns an empty payload for a tensor that its kernel cannot code after all.
    """
    made: dict[int, Made] = {}
    for run in runs_of_equal(xs, bounds, [k for k, x in enumerate(xs) if fits(x)]):
        found = encode_run([xs[k] for k in run], bounds[run[0]])
        made |= {k: one for k, one in zip(run, found, strict=True) if len(one[0])}
    parts = [made[k] if k in made else encode_one(k) for k in range(len(xs))]
    return EncodedList.apart([one[0] for one in parts], xs, [one[1] for one in parts])


def decode_in_runs(
    outs: Sequence[torch.Tensor],
    payloads: Sequence[torch.Tensor],
    fits: Callable[[torch.Tensor], bool],
    decode_run: Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], Sequence[bool]],
    decode_one: Callable[[int], None],
) -> None:
    """Decode into tensors that ``fits`` holds for in runs of one dtype, and the others one by one.

    ``decode_run`` says of each whether its kernel decoded it.
    """
    left = set(range(len(outs)))
    for run in split_by_nbytes(outs, [k for k, out in enumerate(outs) if fits(out)]):
        done = decode_run([outs[k] for k in run], [payloads[k] for k in run])
        left.difference_update(k for k, is_done in zip(run, done, strict=True) if is_done)
    for k in sorted(left):
        decode_one(k)
