"""Payloads of ``rms`` for a list of tensors in Triton: the launches of one encoding.

Kernels that read values are in ``rms_quantize``, those that lay out and write payloads in ``rms_write``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, Final

import torch

from tersor.division import ceil_div
from tersor.kernels.batch.encoded_list import Unwritten
from tersor.kernels.batch.gpu.fused_list import FusedList
from tersor.kernels.batch.gpu.rms_quantize import (
    LEVELS,
    quantize_kernel,
    sample_kernel,
    settle_kernel,
    start_kernel,
)
from tersor.kernels.batch.gpu.rms_write import finish_kernel, plan_kernel
from tersor.kernels.batch.pipeline import RmsPipeline
from tersor.kernels.entropy.rans.gpu.encode_streams import (
    EncodedStreams,
    Streams,
    encode_streams,
    place_streams,
)
from tersor.kernels.entropy.symbols.alphabet import NARROW
from tersor.kernels.group.rms import layout
from tersor.kernels.payload.gpu.plan import NUM_FIELDS
from tersor.kernels.payload.gpu.uncoded import programs_per_tensor
from tersor.kernels.payload.layout import exact_nbytes
from tersor.kernels.quantize.gpu.values import bits_of
from tersor.kernels.runtime.device_cache import on_device
from tersor.kernels.runtime.gpu.element_types import TYPES
from tersor.kernels.runtime.gpu.tiles import TileTable, addresses, are_aligned, tile_table
from tersor.kernels.runtime.workspace import Layout

_ROWS: Final = 4
_TILE: Final = _ROWS * layout.GROUP
"""Each thread holds 32 values, whose loads are all in flight at once. A program is one warp, so sums over a group
stay within it."""
_SAMPLED_ROWS: Final = 4
"""Groups whose symbols one program counts; to count zeros it reads all sampled groups."""
_ALL_ROWS: Final = 16
"""Sampled groups that it reads at a time to count zeros."""
_ALIGNMENT: Final = 64
"""The symbols of a tensor start at a multiple of this many bytes."""
_PART: Final = 1024
_LANES: Final = 1024


@lru_cache(maxsize=64)
def _layout(num_tensors: int, num_tiles: int, num_symbols: int, num_groups: int) -> Layout:
    return Layout.of(
        {
            "symbols": (torch.uint8, num_symbols),
            "scales": (torch.int16, num_groups),
            "fractions": (torch.int16, num_tensors * LEVELS),
            "outlier_counts": (torch.int64, num_tiles),
            "flags": (torch.int64, num_tensors),
            "frequencies": (torch.int64, num_tensors * NARROW),
            "sums": (torch.int64, num_tensors * LEVELS),
            "totals": (torch.int64, num_tensors),
            "plan": (torch.int64, num_tensors * NUM_FIELDS.value),
            "targets": (torch.int64, num_tensors),
            "alphabets": (torch.int32, num_tensors),
            "rotations": (torch.int32, num_tensors),
        }
    )


@dataclass(frozen=True, slots=True)
class _Task:
    """The encoding of one list.

    Attributes:
        xs: tensors, kept alive until their payloads are written because kernels have only their addresses.
        starts: their addresses, on the device.
        top: the largest code.
        step_bits: the bits of the step.
        tiles: tiles of ``_TILE`` values.
        places: the first symbol of each tensor, and the number of all symbols.
        groups: the first scale of each tensor, on the device.
        held: working memory, by the names of ``_layout``.
    """

    xs: Sequence[torch.Tensor]
    starts: torch.Tensor
    top: int
    step_bits: int
    tiles: TileTable
    places: tuple[int, ...]
    groups: torch.Tensor
    held: dict[str, torch.Tensor]

    @classmethod
    def of(cls, xs: Sequence[torch.Tensor], step: float) -> _Task:
        """Lay out the working memory for contiguous tensors of one dtype and device."""
        device, numels = xs[0].device, tuple(x.numel() for x in xs)
        rooms = (ceil_div(numel, _ALIGNMENT) * _ALIGNMENT for numel in numels)
        places = tuple(accumulate(rooms, initial=0))
        *groups, num_groups = accumulate(
            (ceil_div(numel, layout.GROUP) for numel in numels), initial=0
        )
        tiles = tile_table(numels, _TILE, device)
        held = _layout(len(xs), tiles.num_tiles, places[-1], num_groups).carve(device)
        return cls(
            xs, addresses(xs, device), layout.top_of(step), bits_of(layout.f32_step(step)), tiles, places,
            on_device(tuple(groups), device), held,
        )  # fmt: skip

    @property
    def numels(self) -> tuple[int, ...]:
        """Number of values of each tensor."""
        return tuple(x.numel() for x in self.xs)

    @property
    def kind(self) -> Any:
        """The dtype, as kernels take it."""
        return TYPES[self.xs[0].dtype]

    def quantize(self, zeros: bool | None) -> Streams:
        """Compute symbols, scales, levels and frequencies; return the streams of symbols."""
        held, tiles, num = self.held, self.tiles, len(self.xs)
        starts_of_symbols = on_device(self.places[:-1], self.starts.device)
        counters = held["frequencies"], held["sums"]
        alphabets, rotations = held["alphabets"], held["rotations"]
        start_kernel[(num,)](*counters, held["totals"], alphabets, rotations, self.top)
        sample_kernel[(num, layout.NUM_SAMPLED // _SAMPLED_ROWS)](
            self.starts, tiles.counts, self.step_bits, self.top, 2 if zeros is None else int(zeros),
            held["flags"], *counters, TYPE=self.kind, ROWS=_SAMPLED_ROWS, ALL=_ALL_ROWS, num_warps=4,
        )  # fmt: skip
        quantize_kernel[(tiles.num_tiles,)](
            self.starts, tiles.counts, tiles.first_tiles, tiles.owners, starts_of_symbols, self.groups,
            self.step_bits, self.top, held["flags"], held["symbols"], held["scales"],
            held["outlier_counts"], held["totals"], TYPE=self.kind, ALIGNED=are_aligned(self.xs),
            ROWS=_ROWS, num_warps=1,
        )  # fmt: skip
        settle_kernel[(num,)](
            *counters, held["fractions"], held["totals"], held["outlier_counts"], tiles.first_tiles,
            self.top, LANES=_LANES, num_warps=4,
        )  # fmt: skip
        return Streams(
            held["symbols"], starts_of_symbols, tiles.counts, self.numels, alphabets, rotations, num,
            self.places[-1],
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Coded:
    """A list whose bodies are coded and whose payloads are decided.

    Attributes:
        task: the encoding.
        streams: streams of its symbols.
        encoded: the coded streams.
    """

    task: _Task
    streams: Streams
    encoded: EncodedStreams

    def write(self, state: None, nbytes: int) -> torch.Tensor:
        """Allocate ``nbytes`` bytes, write the payloads that fit, and return the memory."""
        del state
        task, held = self.task, self.task.held
        with torch.cuda.device_of(task.starts):
            out = torch.empty(nbytes, dtype=torch.uint8, device=task.starts.device)
            finish_kernel[(len(task.xs), programs_per_tensor(task.numels, _TILE, 4))](
                task.starts, task.tiles.counts, task.tiles.first_tiles, task.groups,
                held["outlier_counts"], held["plan"], held["flags"], held["fractions"], held["scales"],
                out, held["targets"], nbytes, task.top, TYPE=task.kind, TILE=_TILE, PART=_PART,
                num_warps=4,
            )  # fmt: skip
            place_streams(self.streams, self.encoded, held["targets"])
        return out


def encode_rms_list(xs: Sequence[torch.Tensor], pipeline: RmsPipeline) -> FusedList:
    """Encode contiguous tensors of one dtype and device, without waiting."""
    # step and zeros are not compile-time constants: saved activations change the former at every training step
    step, zeros = pipeline.quantizer
    with torch.cuda.device_of(xs[0]):
        task = _Task.of(xs, step)
        streams = task.quantize(zeros)
        encoded = encode_streams(streams, task.held["frequencies"])
        sizes = torch.empty(len(xs), dtype=torch.int64, device=xs[0].device)
        plan_kernel[(1,)](
            task.tiles.counts, task.held["flags"], task.held["totals"], encoded.nbytes, len(xs),
            task.step_bits, task.top, task.held["plan"], sizes, TYPE=task.kind, LANES=256, num_warps=8,
        )  # fmt: skip
    capacity = sum(exact_nbytes(x.nbytes) for x in xs)
    coded = _Coded(task, streams, encoded)
    return FusedList(sizes, Unwritten(capacity, xs, None, coded.write))
