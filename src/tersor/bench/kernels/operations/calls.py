"""Operations bound to tensors: ready to be called, and checked against the reference first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import torch

from tersor.bench.core.operation_cost import OperationCost
from tersor.bench.core.timing import Percentiles, Task
from tersor.bench.kernels.operations.plan import NUM_NODES, NUM_SENDERS, Kind, Operation
from tersor.kernels.runtime.op import use_backend
from tersor.sites.shards.hop import Coded

_POISON: Final = 0xFF


@dataclass(slots=True)
class Place:
    """One place in memory where the values lie; operations on it share what they only read.

    Attributes:
        values: float32, flat.
        copied: memory of the same size, which a copy of the values is written to.
    """

    values: torch.Tensor
    copied: torch.Tensor = field(init=False)
    _pairs: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Allocate the target of the copy."""
        self.copied = torch.zeros_like(self.values)

    def pair(self, dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return values and a base for them in one dtype."""
        if dtype not in self._pairs:
            kind: torch.dtype = getattr(torch, dtype)
            self._pairs[dtype] = self.values.to(kind), self.values.roll(1).to(kind)
        return self._pairs[dtype]


@dataclass(frozen=True, slots=True)
class Call:
    """One operation on one place; calling it runs it once.

    Attributes:
        task: the operation.
        output: what it writes, contiguous.
        start: what ``output`` must hold before, where the operation adds to it.
        moved_nbytes: bytes read and written.
        coded_nbytes: bytes of scales and codes, read or written.
    """

    task: Task
    output: torch.Tensor
    start: torch.Tensor | None
    moved_nbytes: int
    coded_nbytes: int

    def __call__(self) -> None:
        """Run the operation."""
        self.task()

    def cost(self, num_calls: int, graph_s: Percentiles | None) -> OperationCost:
        """Return what a row says of it, with its time as a graph."""
        return OperationCost(moved_nbytes=self.moved_nbytes, num_calls=num_calls, graph_s=graph_s)

    def is_right(self, run: Task) -> bool:
        """Whether ``run``, this call in any form, writes what the reference writes, byte for byte.

        It is run once before: the first time, a form that is captured runs more than once.
        """
        run()
        self._reset()
        run()
        found = self.output.clone()
        self._reset()
        with use_backend("reference"):
            self.task()
        return torch.equal(found.view(torch.uint8), self.output.view(torch.uint8))

    def _reset(self) -> None:
        # one that writes nothing must not pass for what the last run wrote
        if self.start is None:
            self.output.view(torch.uint8).fill_(_POISON)
        else:
            self.output.copy_(self.start)


def bind(operation: Operation, place: Place) -> Call:
    """Return the operation on the values of a place."""
    return _BINDERS[operation.kind](operation, place)


def _call(
    task: Task,
    output: torch.Tensor,
    *,
    coded: Sequence[Coded],
    values: Sequence[torch.Tensor],
    start: torch.Tensor | None = None,
) -> Call:
    """Bind a task that moves each of ``coded`` and ``values`` once."""
    coded_nbytes = sum(one.buffer.nbytes for one in coded)
    moved_nbytes = coded_nbytes + sum(one.nbytes for one in values)
    return Call(task, output, start, moved_nbytes, coded_nbytes)


def _difference(operation: Operation, place: Place) -> Call:
    x, base = place.pair(operation.dtype)
    coded = Coded.empty((1, 1, x.numel()), operation.nbits, operation.group, x.device)
    task = partial(coded.write_difference, x, base, operation.seed)
    return _call(task, coded.buffer, coded=[coded], values=[x, base])


def _add(operation: Operation, place: Place) -> Call:
    x, base = place.pair(operation.dtype)
    coded = _sent(x, operation.nbits, operation)
    start = base.view(NUM_SENDERS, -1)
    out = start.clone()
    task = partial(coded.read_rows, out, add=True)
    return _call(task, out, coded=[coded], values=[out, out], start=start)


def _quantize(operation: Operation, place: Place) -> Call:
    x, _ = place.pair(operation.dtype)
    rows = x.view(NUM_NODES, NUM_SENDERS // NUM_NODES, -1)
    num_rows, num_peers, size = rows.shape
    coded = Coded.empty((num_peers, num_rows, size), operation.nbits, operation.group, x.device)
    task = partial(coded.write, rows, operation.seed, hadamard=operation.hadamard)
    return _call(task, coded.buffer, coded=[coded], values=[x])


def _requantize(operation: Operation, place: Place) -> Call:
    x, _ = place.pair(operation.dtype)
    received = _sent(x, operation.sent_nbits or operation.nbits, operation)
    shape = (1, 1, x.numel() // NUM_SENDERS)
    coded = Coded.empty(shape, operation.nbits, operation.group, x.device)
    task = partial(coded.write_sum, received, operation.seed)
    return _call(task, coded.buffer, coded=[received, coded], values=[])


def _sum(operation: Operation, place: Place) -> Call:
    x, _ = place.pair(operation.dtype)
    received = _sent(x, operation.nbits, operation)
    out = torch.zeros(1, x.numel() // NUM_SENDERS, device=x.device)
    task = partial(received.read_sum, out, hadamard=operation.hadamard)
    return _call(task, out, coded=[received], values=[out])


def _sent(x: torch.Tensor, nbits: int, operation: Operation) -> Coded:
    """Return what 8 senders sent: each an eighth of the values."""
    rows = x.view(1, NUM_SENDERS, -1)
    coded = Coded.empty((NUM_SENDERS, 1, rows.shape[-1]), nbits, operation.group, x.device)
    coded.write(rows, None, hadamard=operation.hadamard)
    return coded


_BINDERS: Final[Mapping[Kind, Callable[[Operation, Place], Call]]] = {
    "difference": _difference,
    "add": _add,
    "quantize": _quantize,
    "requantize": _requantize,
    "sum": _sum,
}
