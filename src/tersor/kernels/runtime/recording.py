"""Record the launches of a call, to repeat them for other tensors without the Python that led to them.

Ten launches and their tables take the host up to a millisecond, of which launching alone is a tenth. A CUDA graph
(``runtime/replay.py``) would need less still, but holds the working memory of its call for as long as it exists, which
is most of a window of saved activations. A recording holds none: every repetition allocates its own, and replaces the
addresses in the recorded arguments.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from math import prod
from threading import Lock, local
from typing import Any, Final, Generic, NamedTuple, TypeVar

import torch

from tersor.division import ceil_div

_ALIGNMENT: Final = 512
"""Allocations of a repetition start at multiples of this many bytes, as those of torch's allocator do."""

_DEFAULT_MAX_NBYTES: Final = 64 * 2**20
"""Limit of the tables that recordings hold: 0.1 MB for a window of saved activations or 256 MiB of ``ans``."""
_NO_NUMBERS: Final[Mapping[str, int]] = {}
_T = TypeVar("_T")


class _LoggedLaunch(NamedTuple):
    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]


class _LoggedTable(NamedTuple):
    """A cached table that the call read, and what marks it as recently used."""

    table: Any
    renew: Callable[[], None]


@dataclass(slots=True)
class Log:
    """The launches and allocations of a call in progress.

    Attributes:
        launches: in order.
        working: memory that the call allocated for itself, in order.
        tables: cached tables that it read.
    """

    launches: list[_LoggedLaunch] = field(default_factory=list)
    working: list[torch.Tensor] = field(default_factory=list)
    tables: list[_LoggedTable] = field(default_factory=list)


class _Active(local):
    log: Log | None = None


_active: Final = _Active()


@contextmanager
def logged() -> Iterator[Log]:
    """Log the launches, the working memory and the cached tables of this thread inside the block."""
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


def log_table(put: Callable[[Hashable, _T], None], place: Hashable, table: _T) -> None:
    """Log that a table was read that ``put(place, table)`` stores in its cache, if this thread is inside ``logged``."""
    if _active.log is not None:
        _active.log.tables.append(_LoggedTable(table, partial(put, place, table)))


def working_memory(nbytes: int, device: torch.device) -> torch.Tensor:
    """Return uninitialised uint8 memory that no result of the call refers to."""
    memory = torch.empty(nbytes, dtype=torch.uint8, device=device)
    if _active.log is not None:
        _active.log.working.append(memory)
    return memory


def working_tensor(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return an uninitialised tensor in ``working_memory`` of its own."""
    return working_memory(prod(shape) * dtype.itemsize, device).view(dtype).view(*shape)


class Place(NamedTuple):
    """Where a tensor lies in a memory.

    Attributes:
        offset: in bytes from the start of the memory.
        dtype: of its values.
        numel: number of its values.
    """

    offset: int
    dtype: torch.dtype
    numel: int

    def of_memory(self, memory: torch.Tensor) -> torch.Tensor:
        """Return the flat tensor at this place of another memory, cut off where that ends."""
        nbytes = self.numel * self.dtype.itemsize
        return memory.view(torch.uint8)[self.offset :][:nbytes].view(self.dtype)


class _Address(NamedTuple):
    """An argument of a launch that is an address, and differs between repetitions.

    Attributes:
        argument: its number.
        memory: index of the memory that the address points into.
        place: of the tensor there.
    """

    argument: int
    memory: int
    place: Place


class _Launch(NamedTuple):
    """A launch to repeat.

    Attributes:
        run: launches the kernel, given all arguments with tensors as addresses; None in Triton's interpreter.
        interpret: launches the kernel in the interpreter, given all arguments.
        arguments: all arguments; those in ``addresses`` and ``numbers`` are to be replaced.
        addresses: addresses that differ between repetitions.
        numbers: indices of arguments that are numbers and differ, and their names.
        held: tensors among the arguments that do not differ.
    """

    run: Callable[[list[Any]], None] | None
    interpret: Callable[[Sequence[Any]], None]
    arguments: list[Any]
    addresses: list[_Address]
    numbers: list[tuple[int, str]]
    held: list[torch.Tensor]

    @classmethod
    def of(
        cls, logged: _LoggedLaunch, memories: Mapping[int, int], names: Collection[str]
    ) -> _Launch:
        """Prepare to repeat a launch.

        Args:
            logged: the launch.
            memories: indices of the memories that differ between repetitions, by their address.
            names: see ``Recording``.

        Raises:
            TypeError: as in ``Recording``.
        """
        kernel, grid, arguments, options = logged
        addresses, held, recorded = [], [], list(arguments)
        run = kernel.prepared(grid, arguments, options)
        for index, x in enumerate(arguments):
            if isinstance(x, tuple) and any(isinstance(part, torch.Tensor) for part in x):
                raise TypeError("a launch with tensors in tuples cannot be recorded")
            if not isinstance(x, torch.Tensor):
                continue
            start = x.untyped_storage().data_ptr()
            if not x.numel():
                # it may be a view of working memory, which must not be held
                recorded[index] = x.new_empty(0) if run is None else 0
            elif start not in memories:
                held.append(x)
                recorded[index] = x if run is None else x.data_ptr()
            else:
                place = Place(x.data_ptr() - start, x.dtype, x.numel())
                addresses.append(_Address(index, memories[start], place))
                recorded[index] = None
        numbers = [(index, name) for index, name in enumerate(kernel.parameters) if name in names]
        if not {name for _, name in numbers} <= set(kernel.wide_parameters):
            raise TypeError(
                f"a number that differs between repetitions must be tl.int64 in {kernel}"
            )

        def interpret(given: Sequence[Any]) -> None:
            kernel[grid](*given, **options)

        return cls(run, interpret, recorded, addresses, numbers, held)

    def repeat(
        self, memories: Sequence[torch.Tensor], starts: Sequence[int], numbers: Mapping[str, int]
    ) -> None:
        """Launch with other memories, whose first addresses are ``starts``, and other numbers."""
        arguments = self.arguments.copy()
        for index, name in self.numbers:
            arguments[index] = numbers[name]
        if self.run is None:
            for one in self.addresses:
                arguments[one.argument] = one.place.of_memory(memories[one.memory])
            self.interpret(arguments)
            return
        for index, memory, (offset, _, _) in self.addresses:
            arguments[index] = starts[memory] + offset
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
            given: inputs and results that ``repeat`` will be given, each with a memory of its own. All other tensors that
                kernels read, such as cached tables, must be the same in every repetition, and are kept alive.
            numbers: names of parameters of kernels that ``repeat`` will be given. Kernels must annotate them as
                ``tl.int64``, as they are compiled once for all numbers.

        Raises:
            TypeError: a kernel does not annotate such a parameter as ``tl.int64``, or takes tensors in tuples.
        """
        working = [memory for log in phases for memory in log.working]
        rooms = [ceil_div(x.nbytes, _ALIGNMENT) * _ALIGNMENT for x in working]
        *self._offsets, self._working_nbytes = accumulate(rooms, initial=0)
        memories = {x.untyped_storage().data_ptr(): k for k, x in enumerate([*working, *given])}
        self._phases = [
            [_Launch.of(one, memories, numbers) for one in log.launches] for log in phases
        ]
        self._tables = [
            one for log in phases for one in log.tables if all(one.table is not x for x in given)
        ]

    @property
    def held_nbytes(self) -> int:
        """Device memory that the recording keeps alive, in bytes."""
        held = [x.untyped_storage() for phase in self._phases for one in phase for x in one.held]
        return sum({one.data_ptr(): one.nbytes() for one in held}.values())

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

        The cached tables of the call count as read, so that a user's capture of the call finds them.

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
        if not phase:
            for _, renew in self._tables:
                renew()
        launches = self._phases[phase]
        memories: Sequence[torch.Tensor] = ()
        if launches and launches[0].run is None:
            memories = [*(working[offset:] for offset in self._offsets), *given]
        for launch in launches:
            launch.repeat(memories, starts, numbers)


class Recordings(Generic[_T]):
    """Recorded calls by form and stream, the least recently used of which are dropped beyond a limit of memory.

    Attributes:
        is_enabled: False if no call is to be recorded or repeated.
    """

    def __init__(self, max_nbytes: int = _DEFAULT_MAX_NBYTES) -> None:
        """Start without recordings."""
        self.is_enabled = True
        self._max_nbytes = max_nbytes
        self._lock = Lock()
        self._found: OrderedDict[Hashable, tuple[_T, int]] = OrderedDict()
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Device memory that recordings keep alive; tables of several recordings count for each."""
        return self._nbytes

    def get(self, key: Hashable) -> _T | None:
        """Return the recorded call of a form and stream; None if there is none."""
        with self._lock:
            found = self._found.get(key)
            if found is None:
                return None
            self._found.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, recorded: _T, nbytes: int) -> None:
        """Store a recorded call that keeps ``nbytes`` of device memory alive, if there is none yet."""
        with self._lock:
            if not self.is_enabled or key in self._found:
                return
            self._found[key] = recorded, nbytes
            self._nbytes += nbytes
            while self._nbytes > self._max_nbytes and self._found:
                _, (_, oldest_nbytes) = self._found.popitem(last=False)
                self._nbytes -= oldest_nbytes

    def configure(self, is_enabled: bool, max_nbytes: int | None = None) -> None:
        """Turn recording on or off, with a limit of memory of at most 64 MiB; drops all recordings."""
        with self._lock:
            self.is_enabled = is_enabled
            limits = _DEFAULT_MAX_NBYTES, max_nbytes
            self._max_nbytes = min(limit for limit in limits if limit is not None)
            self._found.clear()
            self._nbytes = 0


RECORDINGS: Final[Recordings[Any]] = Recordings()
