"""The speed at which a device copies its own memory, the ceiling for all other speeds."""

from __future__ import annotations

from functools import partial
from typing import Final

import torch

from tersor.bench.core import machine
from tersor.bench.core.footprint import peak_memory
from tersor.bench.core.lead_times import LeadTimes
from tersor.bench.core.rows import COPY_NBYTES, ResultRow
from tersor.bench.core.timing import Clocks, clocks_of, measure
from tersor.errors import TersorError

CEILING: Final = "copy-ceiling"


class Ceiling:
    """A copy of ``nbytes`` bytes; calling it copies once."""

    def __init__(self, device: torch.device, nbytes: int = COPY_NBYTES) -> None:
        """Allocate source and target, and copy once to check that it works."""
        self._source = torch.arange(nbytes // 4, dtype=torch.int32, device=device)
        self._target = torch.zeros_like(self._source)
        self()
        if not torch.equal(self._source, self._target):
            raise TersorError("a copy on the device changed the values; nothing can be timed there")

    def __call__(self) -> None:
        """Copy once."""
        self._target.copy_(self._source)

    def row(self, *, rounds: int, warmup: int, clocks: Clocks | None = None) -> ResultRow:
        """Time the copy alone and return its result row."""
        device, nbytes = self._source.device, self._source.nbytes
        own, lead = clocks_of(device) if clocks is None else clocks
        measured = partial(measure, self, device=device, rounds=rounds, warmup=warmup)
        seconds = measured(clock=own)
        lead_s = None if lead is None else measured(clock=lead)
        with peak_memory(device) as taken:
            self()
        return ResultRow(
            suite="kernels", codec=CEILING, version=str(torch.__version__), spec={}, input="copy",
            device=device.type, num_values=self._source.numel(), worst_error=None,
            error_bound=None, peer=True, note="reads and writes every byte once",
            original_nbytes=nbytes, encoded_nbytes=nbytes, encode_s=seconds, decode_s=seconds,
            memcpy_s=seconds, copy_s=seconds, clock=own.kind,
            lead=None if lead_s is None else LeadTimes(
                encode_s=lead_s, decode_s=lead_s, memcpy_s=lead_s
            ),
            workspace_nbytes=None if taken.nbytes is None else {
                "encode": taken.nbytes, "decode": taken.nbytes
            },
            **machine.origin(device),
        )  # fmt: skip


def ceiling_of(device: torch.device) -> Ceiling | None:
    """Return the reference copy for ``device``; None on the CPU, where memcpy is a peer instead."""
    return Ceiling(device) if device.type == "cuda" else None
