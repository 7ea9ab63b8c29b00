"""Operations bound to tensors, which can be called and compared with the reference backend."""

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
class BufferSet:
    """A set of buffers with its own copy of the values; operations on it share the tensors that they only read.

    Attributes:
        values: float32 values, flat.
        copied: a tensor of the same size, the target of the reference copy.
    """

    values: torch.Tensor
    copied: torch.Tensor = field(init=False)
    _pairs: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Allocate the target of the reference copy."""
        self.copied = torch.zeros_like(self.values)

    def pair(self, dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the values and a base for them in the given dtype."""
        if dtype not in self._pairs:
            kind: torch.dtype = getattr(torch, dtype)
            self._pairs[dtype] = self.values.to(kind), self.values.roll(1).to(kind)
        return self._pairs[dtype]


@dataclass(frozen=True, slots=True)
class Call:
    """One operation on one set of buffers; calling it runs it once.

    Attributes:
        task: the operation.
        output: the contiguous tensor that it writes.
        start: initial contents of ``output`` if the operation adds to it, else None.
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
        """Return the cost for a row, with the time as a CUDA graph."""
        return OperationCost(moved_nbytes=self.moved_nbytes, num_calls=num_calls, graph_s=graph_s)

    def is_right(self, run: Task) -> bool:
        """Return whether ``run``, which is this call in any form, writes the reference's bytes.

        ``run`` is called once before the comparison, because capturing a graph runs the call repeatedly.
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
        # an operation that writes nothing must not pass with the previous run's output
        if self.start is None:
            self.output.view(torch.uint8).fill_(_POISON)
        else:
            self.output.copy_(self.start)


def bind(operation: Operation, buffers: BufferSet) -> Call:
    """Bind an operation to a set of buffers."""
    return _BINDERS[operation.kind](operation, buffers)


def _call(
    task: Task,
    output: torch.Tensor,
    *,
    coded: Sequence[Coded],
    values: Sequence[torch.Tensor],
    start: torch.Tensor | None = None,
) -> Call:
    """Return the call of a task that reads or writes each of ``coded`` and ``values`` once."""
    coded_nbytes = sum(one.buffer.nbytes for one in coded)
    moved_nbytes = coded_nbytes + sum(one.nbytes for one in values)
    return Call(task, output, start, moved_nbytes, coded_nbytes)


def _difference(operation: Operation, buffers: BufferSet) -> Call:
    x, base = buffers.pair(operation.dtype)
    coded = Coded.empty((1, 1, x.numel()), operation.nbits, operation.group, x.device)
    task = partial(coded.write_difference, x, base, operation.seed)
    return _call(task, coded.buffer, coded=[coded], values=[x, base])


def _add(operation: Operation, buffers: BufferSet) -> Call:
    x, base = buffers.pair(operation.dtype)
    coded = _sent(x, operation.nbits, operation)
    start = base.view(NUM_SENDERS, -1)
    out = start.clone()
    task = partial(coded.read_rows, out, add=True)
    return _call(task, out, coded=[coded], values=[out, out], start=start)


def _quantize(operation: Operation, buffers: BufferSet) -> Call:
    x, _ = buffers.pair(operation.dtype)
    rows = x.view(NUM_NODES, NUM_SENDERS // NUM_NODES, -1)
    num_rows, num_peers, size = rows.shape
    coded = Coded.empty((num_peers, num_rows, size), operation.nbits, operation.group, x.device)
    task = partial(coded.write, rows, operation.seed, hadamard=operation.hadamard)
    return _call(task, coded.buffer, coded=[coded], values=[x])


def _requantize(operation: Operation, buffers: BufferSet) -> Call:
    x, _ = buffers.pair(operation.dtype)
    received = _sent(x, operation.sent_nbits or operation.nbits, operation)
    shape = (1, 1, x.numel() // NUM_SENDERS)
    coded = Coded.empty(shape, operation.nbits, operation.group, x.device)
    task = partial(coded.write_sum, received, operation.seed)
    return _call(task, coded.buffer, coded=[received, coded], values=[])


def _sum(operation: Operation, buffers: BufferSet) -> Call:
    x, _ = buffers.pair(operation.dtype)
    received = _sent(x, operation.nbits, operation)
    out = torch.zeros(1, x.numel() // NUM_SENDERS, device=x.device)
    task = partial(received.read_sum, out, hadamard=operation.hadamard)
    return _call(task, out, coded=[received], values=[out])


def _sent(x: torch.Tensor, nbits: int, operation: Operation) -> Coded:
    """Return the encoded values of 8 senders, an eighth of the values each."""
    rows = x.view(1, NUM_SENDERS, -1)
    coded = Coded.empty((NUM_SENDERS, 1, rows.shape[-1]), nbits, operation.group, x.device)
    coded.write(rows, None, hadamard=operation.hadamard)
    return coded


_BINDERS: Final[Mapping[Kind, Callable[[Operation, BufferSet], Call]]] = {
    "difference": _difference,
    "add": _add,
    "quantize": _quantize,
    "requantize": _requantize,
    "sum": _sum,
}
