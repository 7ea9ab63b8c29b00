"""Record the launches of a call, to repeat them for other tensors without the Python that led to them.

Ten launches and their tables take the host up to a millisecond, of which launching alone is a tenth. A CUDA graph
(``runtime/replay.py``) would need less still, but holds the working memory of its call for as long as it exists, which
is most of a window of saved activations. A recording holds none: every repetition allocates its own, and replaces the
addresses in the recorded arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from threading import local
from typing import Any, Final, NamedTuple

import torch

from tersor.division import ceil_div

_ALIGNMENT: Final = 512
"""Allocations of a repetition start at multiples of this many bytes, as those of torch's allocator do."""


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


class _Address(NamedTuple):
    """An argument of a launch that differs between repetitions.

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
        """Return the tensor at this address."""
        start = self.offset
        own = memories[self.memory].view(torch.uint8)
        return own[start : start + self.numel * self.like.itemsize].view(self.like.dtype)


class _Launch(NamedTuple):
    """A launch to repeat.

    Attributes:
        run: launches the kernel, given all arguments with tensors as addresses; None in Triton's interpreter.
        interpret: launches the kernel in the interpreter, given all arguments.
        arguments: all arguments; those in ``addresses`` are to be replaced.
        addresses: arguments that differ between repetitions.
    """

    run: Callable[[list[Any]], None] | None
    interpret: Callable[[Sequence[Any]], None]
    arguments: list[Any]
    addresses: list[_Address]

    def repeat(self, memories: Sequence[torch.Tensor], starts: Sequence[int]) -> None:
        """Launch with other memories, whose first addresses are ``starts``."""
        arguments = self.arguments.copy()
        if self.run is None:
            for one in self.addresses:
                arguments[one.place] = one.tensor(memories)
            self.interpret(arguments)
            return
        for place, memory, offset, _, _ in self.addresses:
            arguments[place] = starts[memory] + offset
        self.run(arguments)


class Recording:
    """The launches of a call that differ between repetitions only in the memory they read and write."""

    def __init__(self, log: Log, given: Sequence[torch.Tensor]) -> None:
        """Record a finished call.

        Args:
            log: its log. Kernels must have done all of its work, and their tensors must be contiguous.
            given: memory that ``repeat`` will be given: inputs and results. All other tensors that kernels read,
                such as cached tables, must be the same in every repetition, and are kept alive.
        """
        rooms = [ceil_div(x.nbytes, _ALIGNMENT) * _ALIGNMENT for x in log.working]
        *self._offsets, self._working_nbytes = accumulate(rooms, initial=0)
        self._num_given = len(given)
        memories = [*given, *log.working]
        owners = {x.untyped_storage().data_ptr(): k for k, x in enumerate(memories)}
        self._held: list[torch.Tensor] = []
        self._launches = [self._launch(one, memories, owners) for one in log.launches]

    @property
    def held_nbytes(self) -> int:
        """Device memory that the recording keeps alive, in bytes."""
        return sum(x.untyped_storage().nbytes() for x in self._held)

    def repeat(self, given: Sequence[torch.Tensor]) -> None:
        """Make the call again on the current device and stream.

        Args:
            given: inputs and results, of the sizes, dtypes and alignments of the recorded ones.
        """
        working = working_memory(self._working_nbytes, given[0].device)
        starts = [x.data_ptr() for x in given]
        first = working.data_ptr()
        starts += [first + offset for offset in self._offsets]
        memories = (
            [*given, *(working[offset:] for offset in self._offsets)]
            if self._is_interpreted
            else ()
        )
        for launch in self._launches:
            launch.repeat(memories, starts)

    @property
    def _is_interpreted(self) -> bool:
        return bool(self._launches) and self._launches[0].run is None

    def _launch(
        self, logged: _LoggedLaunch, memories: Sequence[torch.Tensor], owners: dict[int, int]
    ) -> _Launch:
        kernel, grid, arguments, options = logged
        addresses: list[_Address] = []
        recorded: list[Any] = list(arguments)
        run = kernel.prepared(grid, arguments, options)
        for place, x in enumerate(arguments):
            if not isinstance(x, torch.Tensor):
                continue
            memory = owners.get(x.untyped_storage().data_ptr())
            if memory is None:
                self._held.append(x)
                recorded[place] = x if run is None else x.data_ptr()
            else:
                offset = x.data_ptr() - memories[memory].data_ptr()
                addresses.append(_Address(place, memory, offset, x.new_empty(0), x.numel()))
        return _Launch(run, lambda given: kernel[grid](*given, **options), recorded, addresses)
