"""Record the launches of a call, to repeat them for other tensors without the Python that led to them.

Ten launches and their tables take the host up to a millisecond, of which launching alone is a tenth. A CUDA graph
(``runtime/replay.py``) would need less still, but holds the working memory of its call for as long as it exists, which
is most of a window of saved activations. A recording holds none: every repetition allocates its own, and replaces the
addresses in the recorded arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from threading import local
from typing import Any, Final, NamedTuple

import torch

from tersor.division import ceil_div

_ALIGNMENT: Final = 512
"""Allocations of a repetition start at multiples of this many bytes, as those of torch's allocator do."""

_NO_NUMBERS: Final[Mapping[str, int]] = {}


class _LoggedLaunch(NamedTuple):
    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]


@dataclass(slots=True)
class Log:
    """The launches and allocations of a call in progress.

    Attributes:
        launches: in order.
        working: memory that the call allocated for itself, in order.
    """

    launches: list[_LoggedLaunch] = field(default_factory=list)
    working: list[torch.Tensor] = field(default_factory=list)


class _Active(local):
    log: Log | None = None


_active: Final = _Active()


@contextmanager
def logged() -> Iterator[Log]:
    """Log the launches and the working memory of this thread inside the block."""
    outer, _active.log = _active.log, Log()
    try:
        yield _active.log
    finally:
        _active.log = outer


def log_launch(
    kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """Log a launch, if this thread is inside ``logged``."""
    if _active.log is not None:
        _active.log.launches.append(_LoggedLaunch(kernel, grid, arguments, options))


def working_memory(nbytes: int, device: torch.device) -> torch.Tensor:
    """Return uninitialised uint8 memory that no result of the call refers to."""
    memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
    if _active.log is not None:
        _active.log.working.append(memory)
    return memory


def working_tensor(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return an uninitialised tensor in ``working_memory`` of its own."""
    return working_memory(prod(shape) * dtype.itemsize, device).view(dtype).view(*shape)


class _Address(NamedTuple):
    """An argument of a launch that is an address, and differs between repetitions.

    Attributes:
        place: index in the arguments.
        memory: index of the memory that the address points into.
        offset: in bytes from its start.
        like: an empty tensor of the dtype that the kernel reads.
        numel: number of values that the tensor had.
    """

    place: int
    memory: int
    offset: int
    like: torch.Tensor
    numel: int

    def tensor(self, memories: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the tensor at this address, cut off where the memory ends."""
        own, nbytes = memories[self.memory].view(torch.uint8), self.numel * self.like.itemsize
        return own[self.offset :][:nbytes].view(self.like.dtype)


class _Launch(NamedTuple):
    """A launch to repeat.

    Attributes:
        run: launches the kernel, given all arguments with tensors as addresses; None in Triton's interpreter.
        interpret: launches the kernel in the interpreter, given all arguments.
        arguments: all arguments; those in ``addresses`` and ``numbers`` are to be replaced.
        addresses: addresses that differ between repetitions.
        numbers: indices of arguments that are numbers and differ, and their names.
    """

    run: Callable[[list[Any]], None] | None
    interpret: Callable[[Sequence[Any]], None]
    arguments: list[Any]
    addresses: list[_Address]
    numbers: list[tuple[int, str]]

    def repeat(
        self, memories: Sequence[torch.Tensor], starts: Sequence[int], numbers: Mapping[str, int]
    ) -> None:
        """Launch with other memories, whose first addresses are ``starts``, and other numbers."""
        arguments = self.arguments.copy()
        for place, name in self.numbers:
            arguments[place] = numbers[name]
        if self.run is None:
            for one in self.addresses:
                arguments[one.place] = one.tensor(memories)
            self.interpret(arguments)
            return
        for place, memory, offset, _, _ in self.addresses:
            arguments[place] = starts[memory] + offset
        self.run(arguments)


class Recording:
    """The launches of a call, which differ between repetitions only in memory and in named numbers.

    A call has several phases if its caller does something in between, such as allocating a result.
    """

    def __init__(
        self, phases: Sequence[Log], given: Sequence[torch.Tensor], numbers: Collection[str] = ()
    ) -> None:
        """Record a finished call.

        Args:
            phases: its log, one per phase. Kernels must have done all of its work, on contiguous tensors.
            given: inputs and results, which ``repeat`` will be given. All other tensors that kernels read, such as
                cached tables, must be the same in every repetition, and are kept alive.
            numbers: names of parameters of kernels that ``repeat`` will be given. Kernels must annotate them as
                ``tl.int64``, as they are compiled once for all numbers.

        Raises:
            TypeError: a kernel does not, or takes tensors in tuples.
        """
        working = [memory for log in phases for memory in log.working]
        rooms = [ceil_div(x.nbytes, _ALIGNMENT) * _ALIGNMENT for x in working]
        *self._offsets, self._working_nbytes = accumulate(rooms, initial=0)
        self._memories, self._numbers = [*working, *given], numbers
        self._owners = {x.untyped_storage().data_ptr(): k for k, x in enumerate(self._memories)}
        self._held: list[torch.Tensor] = []
        self._phases = [[self._launch(one) for one in log.launches] for log in phases]
        # only their sizes were needed
        self._memories.clear()

    @property
    def held_nbytes(self) -> int:
        """Device memory that the recording keeps alive, in bytes."""
        storages = {x.untyped_storage().data_ptr(): x.untyped_storage() for x in self._held}
        return sum(storage.nbytes() for storage in storages.values())

    def new_working(self, device: torch.device) -> torch.Tensor:
        """Return working memory for all phases of one repetition."""
        return working_memory(self._working_nbytes, device)

    def repeat(
        self,
        phase: int,
        working: torch.Tensor,
        given: Sequence[torch.Tensor],
        numbers: Mapping[str, int] = _NO_NUMBERS,
    ) -> None:
        """Make one phase of the call again, on the current device and stream.

        Args:
            phase: number of the phase.
            working: working memory of this repetition.
            given: inputs and results of the dtypes and alignments of the recorded ones; the last may be missing if no
                kernel of this phase reads or writes them.
            numbers: numbers by name of their parameter.
        """
        first = working.data_ptr()
        starts = [first + offset for offset in self._offsets]
        starts += [x.data_ptr() for x in given]
        launches = self._phases[phase]
        memories: Sequence[torch.Tensor] = ()
        if launches and launches[0].run is None:
            memories = [*(working[offset:] for offset in self._offsets), *given]
        for launch in launches:
            launch.repeat(memories, starts, numbers)

    def _launch(self, logged: _LoggedLaunch) -> _Launch:
        kernel, grid, arguments, options = logged
        addresses: list[_Address] = []
        recorded: list[Any] = list(arguments)
        run = kernel.prepared(grid, arguments, options)
        for place, x in enumerate(arguments):
            if isinstance(x, tuple) and any(isinstance(part, torch.Tensor) for part in x):
                raise TypeError("a launch with tensors in tuples cannot be recorded")
            if not isinstance(x, torch.Tensor):
                continue
            memory = self._owners.get(x.untyped_storage().data_ptr())
            if not x.numel():
                # it may be a view of working memory, which must not be held
                recorded[place] = x.new_empty(0) if run is None else 0
            elif memory is None:
                self._held.append(x)
                recorded[place] = x if run is None else x.data_ptr()
            else:
                offset = x.data_ptr() - self._memories[memory].data_ptr()
                addresses.append(_Address(place, memory, offset, x.new_empty(0), x.numel()))
                recorded[place] = None
        names = enumerate(kernel.parameters)
        numbers = [(place, name) for place, name in names if name in self._numbers]
        if not {name for _, name in numbers} <= set(kernel.wide_parameters):
            raise TypeError(
                f"a number that differs between repetitions must be tl.int64 in {kernel}"
            )
        return _Launch(
            run, lambda given: kernel[grid](*given, **options), recorded, addresses, numbers
        )
