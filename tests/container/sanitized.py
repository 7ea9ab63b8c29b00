"""Small lists through every codec of a GPU, whole and damaged, for compute-sanitizer to watch.

``make sanitize`` runs it on a machine with CUDA, once for each of two tools. memcheck runs without torch's caching
allocator, so that it sees an access one byte outside a tensor. No graph can be captured in that mode, so only racecheck
watches replayed graphs. This is not a test of pytest: a run takes minutes, and its result is what the sanitizer reports.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any, Final

import torch

from tersor import Bound, TensorInfo, create, decode_batch, encode_batch, set_graph_replay
from tersor.codecs.codec import Codec
from tersor.container import Batch
from tersor.errors import CorruptDataError

_CODECS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("flat", {"bound": Bound.relative(0.03)}),
    ("ans", {"bound": Bound.relative(0.03)}),
    ("ans", {"bound": Bound.relative(0.03), "lorenzo": 3}),
    ("rms", {}),
    ("mask4", {}),
    ("group2", {}),
    ("rows", {"bound": Bound.relative(0.03), "entropy": "ans"}),
    ("rows", {"bound": Bound.relative(0.03)}),
    ("huffman", {"bound": Bound.relative(0.01)}),
    ("delta", {"bound": Bound.relative(0.01)}),
    ("delta", {"bound": Bound.relative(0.01), "lorenzo": 2}),
    ("delta", {"bound": Bound.relative(0.01), "lorenzo": 3}),
    ("group4", {"hadamard": True}),
    ("group8", {}),
    ("half", {}),
    ("bf16", {}),
    ("fp8", {}),
)


def lists() -> Iterator[list[torch.Tensor]]:
    """Yield a list that small kernels take, and two that they do not, one of three axes and two bytes a value."""
    rows = torch.randn(40, 16)[torch.randint(0, 40, (90,))]
    odd = torch.randn(750, 4) * 1e30
    odd[5, 1], odd[7, 2] = torch.nan, torch.inf
    small = [rows, torch.randn(375, 4), torch.zeros(8, 4), odd]
    for tensors in (small, [torch.randn(2250, 4), *small]):
        yield [x.cuda().contiguous() for x in tensors]
    planes = torch.randn(9, 33, 40).cumsum(2)
    yield [x.to(torch.bfloat16).cuda() for x in (planes, torch.randn(3, 5, 7), *small)]


def many_codes() -> list[torch.Tensor]:
    """Return a tensor that kernels for wide alphabets take: 600 codes within a relative bound of 1e-3."""
    return [torch.randn(1 << 18).cuda()]


def run(codec: Codec, xs: list[torch.Tensor], num_flips: int) -> int:
    """Encode and decode a list, then decode it with flipped bytes; return how often it was refused."""
    codecs, infos = [codec] * len(xs), [TensorInfo.of(x) for x in xs]
    # repetitions of a call, as a graph or from a recording, have code of their own
    for _ in range(4):
        whole = encode_batch(xs, codecs)
        decode_batch(whole, infos, codecs)
    trimmed = whole.trimmed()
    num_refused = 0
    for seed in range(num_flips):
        generator = torch.Generator().manual_seed(seed)
        damaged = trimmed.buffer.clone()
        place = int(torch.randint(0, damaged.numel(), (1,), generator=generator))
        damaged[place] ^= int(torch.randint(1, 256, (1,), generator=generator))
        try:
            decode_batch(Batch(damaged, trimmed.sizes.cuda()), infos, codecs)
        except CorruptDataError:
            num_refused += 1
    torch.cuda.synchronize()
    return num_refused


def main() -> None:
    """Run all codecs on all lists."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=6, help="damaged copies of each list")
    num_flips = parser.parse_args().flips
    if "PYTORCH_NO_CUDA_MEMORY_CACHING" in os.environ:
        # allocations end a capture with errors of CUDA, which the sanitizer counts
        set_graph_replay(False)
    torch.manual_seed(0)
    calls = [(create(codec_id, **options), xs) for codec_id, options in _CODECS for xs in lists()]
    calls.append((create("ans", bound=Bound.relative(1e-3)), many_codes()))
    for codec, xs in calls:
        num_refused = run(codec, xs, num_flips)
        found = f"{len(xs)} tensors of {xs[0].dtype}, {num_refused} of {num_flips} refused"
        print(f"{codec.codec_id}: {found}", flush=True)


if __name__ == "__main__":
    main()
