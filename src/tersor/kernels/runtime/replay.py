"""Replay calls on lists of tensors as CUDA graphs: the host launches once instead of a dozen times.

A dozen launches take the host longer than an H200 needs for tens of megabytes: 460 us for ``ans`` on 26
look-ups of 256 x 64, of which the device is busy for 33 us. The third call of a form (its shapes, dtypes
and kinds of bounds) is captured. Later calls copy what varies between them, tables of addresses and
bounds, to where the graph reads it, and replay the graph. The caller must copy or read the results before
the next replay overwrites them.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from threading import Lock, RLock
from typing import Any, Final, Generic, TypeVar

import torch

from tersor.errors import SpecError
from tersor.kernels.runtime.device_cache import raw_stream, stream_of, substituted
from tersor.kernels.runtime.recording import RECORDINGS
from tersor.kernels.runtime.sparing import is_sparing

_CALLS_BEFORE: Final = 2
"""Calls of a form that run without being captured: most forms do not occur a third time."""
_MAX_FORMS: Final = 256
MOST_RESULT_NBYTES: Final = 32 * 2**20
"""Largest result of a replayed call. Copying more takes a device longer than launching takes a host."""
_DEFAULT_MAX_NBYTES: Final = 512 * 2**20
_MAX_DROPS: Final = 8
"""How often graphs may be dropped for exceeding a limit; then they evidently do not fit, and capturing stops."""

_T = TypeVar("_T")
_R = TypeVar("_R")
Table = tuple[Any, ...]
"""A function wrapped by ``cached_on_stream``, followed by its arguments."""


class Form:
    """Calls of one form on one stream: how many were made, whether they can be captured, and their graph.

    Attributes:
        device: the device of all these calls.
        stream: handle of the stream of all these calls.
    """

    __slots__ = ("device", "is_capturable", "num_calls", "replay", "stream")

    def __init__(self, device: torch.device, stream: int) -> None:
        self.device, self.stream = device, stream
        self.num_calls = 0
        self.is_capturable = True
        self.replay: Replay[Any] | None = None


@dataclass(frozen=True, slots=True)
class Call(Generic[_T]):
    """One call that may be replayed.

    Attributes:
        form: the form that ``Replays.form_of`` returned.
        device: the device it runs on.
        varying: tables that the call reads and that differ between calls of its form.
        tensors: maps the result of the call to the tensors that a replay writes; None if the result
            cannot be copied.
    """

    form: Form
    device: torch.device
    varying: tuple[Table, ...]
    tensors: Callable[[_T], Sequence[torch.Tensor] | None]

    def sources(self) -> list[torch.Tensor]:
        """Return the varying tables from the cache, where a graph captured by the user also finds them."""
        return [function(*key) for function, *key in self.varying]


@dataclass(slots=True)
class Replay(Generic[_T]):
    """A captured call of one form, on one stream.

    Attributes:
        tables: what the graph reads in place of ``Call.varying``.
        result: what the call returned, in memory that every replay overwrites.
        written: the tensors of that memory.
        stream: the stream that all replays run on.
        copies: what copies ``written``; set by the caller.
        lock: held from a launch until the host has read what the graph wrote to host memory.
    """

    tables: Sequence[torch.Tensor]
    result: _T
    written: Sequence[torch.Tensor]
    stream: Any
    _graph: Any
    _held: Sequence[Any] = field(repr=False)
    _varying: list[Table]
    copies: Any = None
    lock: Lock = field(default_factory=Lock, repr=False)

    def launch(self, varying: Sequence[Table]) -> None:
        """Replay on the current stream, with the varying tables of this call."""
        for k, (function, *key) in enumerate(varying):
            if varying[k] != self._varying[k]:
                self.tables[k].copy_(function(*key))
                self._varying[k] = varying[k]
        self._graph.replay()


class Replays:
    """Graphs by form, device and stream; all of them share one memory limit.

    Attributes:
        lock: held while graphs are captured, launched or dropped.
    """

    def __init__(self) -> None:
        """Start without graphs."""
        self.lock = RLock()
        self._is_enabled, self._max_nbytes = True, _DEFAULT_MAX_NBYTES
        self._drops_left = _MAX_DROPS
        self._forms: OrderedDict[Hashable, Form] = OrderedDict()
        self._captures: dict[tuple[torch.device, int], tuple[Any, torch.cuda.Stream]] = {}
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """Device memory that graphs hold, summed over all devices."""
        return self._nbytes

    @property
    def num_graphs(self) -> int:
        """The number of captured graphs."""
        return sum(form.replay is not None for form in self._forms.values())

    def configure(self, is_enabled: bool, max_nbytes: int | None) -> None:
        """Turn replays on or off; drops all graphs and frees their memory."""
        with self.lock:
            self._is_enabled = is_enabled
            self._max_nbytes = _DEFAULT_MAX_NBYTES if max_nbytes is None else max_nbytes
            self.reset()

    def reset(self) -> None:
        """Forget all forms; drops all graphs and frees their memory."""
        with self.lock:
            self._drop()
            self._drops_left = _MAX_DROPS

    def form_of(self, form: Hashable, device: torch.device) -> Form | None:
        """Return the state of a form on the current stream; None if calls are not to be replayed.

        Nothing is replayed under a limit of memory, because a graph has the working memory of calls without one.
        """
        if not self._is_enabled or device.type != "cuda" or is_sparing():
            return None
        if torch.cuda.is_current_stream_capturing():
            return None
        stream = stream_of(device)
        key = (form, device, stream)
        with self.lock:
            found = self._forms.get(key)
            if found is None:
                found = self._forms[key] = Form(device, stream)
                self._forget_oldest()
            else:
                self._forms.move_to_end(key)
        return found

    def launch(
        self, form: Form, varying: Sequence[Table], then: Callable[[Replay[Any]], _R]
    ) -> _R | None:
        """Replay the graph of a form and return ``then(replay)``, before any other graph is replayed.

        Graphs of a stream share working memory, so the next one may overwrite the result of this one:
        ``then`` must enqueue its copy. It must not wait.

        Returns:
            None, with nothing launched, if there is no graph, memory is limited, the current device and stream are
            not those of the form, or the stream is being captured.
        """
        if form.replay is None or is_sparing() or not _is_current(form):
            return None
        with self.lock:
            replay = form.replay
            if replay is None:
                return None
            replay.launch(varying)
            return then(replay)

    def note(self, call: Call[_T], run: Callable[[], _T], is_copied: bool = True) -> None:
        """Count a call that was made; from the third of its form on, capture it if that is possible.

        Capturing makes the call again.

        Args:
            call: the call that was made.
            run: makes the call. It must not upload anything other than cached tables.
            is_copied: False if the result is known to be one that cannot be copied.
        """
        form = call.form
        form.num_calls += 1
        is_left_alone = form.num_calls <= _CALLS_BEFORE or form.replay is not None or is_sparing()
        if is_left_alone or not is_copied or not form.is_capturable or self._drops_left == 0:
            return
        try:
            # tables made in inference mode could not be written to outside of it
            with torch.inference_mode(False), self.lock:
                self._capture(call, run)
        except (RuntimeError, SpecError) as error:
            # what cannot be captured keeps launching its kernels one by one
            form.is_capturable = False
            self._captures.pop((call.device, stream_of(call.device)), None)
            logging.getLogger("tersor").debug("a call is not replayed as a CUDA graph: %s", error)

    def _capture(self, call: Call[_T], run: Callable[[], _T]) -> None:
        tables = [source.clone() for source in call.sources()]
        other = dict(zip(call.varying, tables, strict=True))
        with substituted(other):
            # the substituted tables may need other specialisations: compile them before the capture
            written = call.tensors(run())
        if written is None or sum(x.nbytes for x in written) > MOST_RESULT_NBYTES:
            call.form.is_capturable = False
            return
        pool, stream = self._capture_of(call.device)
        graph: Any = torch.cuda.CUDAGraph()
        before_nbytes = torch.cuda.memory_reserved(call.device)
        with substituted(other) as held, torch.cuda.stream(stream):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                result = run()
            finally:
                graph.capture_end()
        written = call.tensors(result) or ()
        current = torch.cuda.current_stream(call.device)
        call.form.replay = Replay(tables, result, written, current, graph, held, list(call.varying))
        self._nbytes += max(0, torch.cuda.memory_reserved(call.device) - before_nbytes)
        if self._nbytes > self._max_nbytes:
            # the new graph is dropped as well, together with its form
            call.form.replay = None
            del graph, result, written
            self._drop()
            self._drops_left -= 1

    def _capture_of(self, device: torch.device) -> tuple[Any, torch.cuda.Stream]:
        """Return the memory pool and the capture stream that belong to the current stream.

        Graphs of one stream run one after the other, so they can share working memory.
        """
        key = (device, stream_of(device))
        if key not in self._captures:
            self._captures[key] = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
        return self._captures[key]

    def _forget_oldest(self) -> None:
        """If there are too many forms, forget the oldest without a graph; if all have one, drop all."""
        if len(self._forms) <= _MAX_FORMS:
            return
        for key, form in self._forms.items():
            if form.replay is None:
                del self._forms[key]
                return
        self._drop()
        self._drops_left -= 1

    def _drop(self) -> None:
        """Wait for the devices, then drop all graphs and free their memory."""
        devices = {device for device, _ in self._captures}
        for device in devices:
            torch.cuda.synchronize(device)
        for form in self._forms.values():
            form.replay = None
        self._forms.clear()
        self._captures.clear()
        self._nbytes = 0
        if devices:
            torch.cuda.empty_cache()


def _is_current(form: Form) -> bool:
    """True if the current device and stream are those of the form, and the stream is not being captured."""
    index = torch.cuda.current_device()
    return (
        index == form.device.index
        and raw_stream(index) == form.stream
        and not torch.cuda.is_current_stream_capturing()
    )


REPLAYS: Final = Replays()


def set_graph_replay(enabled: bool, *, max_nbytes: int | None = None) -> None:
    """Enable or disable the replay of calls on CUDA tensors as CUDA graphs; it is enabled by default.

    The third call of `compress`, `encode_batch`, their decoders or an exchange with the same shapes, dtypes and
    kinds of bounds on a stream is captured, and later ones replay it: the host launches once instead of a dozen
    times. Large lists of `ans` and `rms`, whose graphs would hold too much memory, have their launches recorded and
    repeated instead. Nothing is replayed or repeated inside a capture of your own, nor in a call with
    `max_workspace_nbytes`, which does not count the memory of graphs either.

    Setting it waits for all graphs to finish, drops them and all recordings, and frees their memory.

    Args:
        enabled: False makes every call prepare and launch its kernels one by one.
        max_nbytes: device memory that graphs may hold, 512 MiB by default. All graphs are dropped when they
            exceed it; where that keeps happening, capturing stops. Recordings hold at most as much in addition, and at
            most 64 MiB: the least recently used are dropped.

    Raises:
        SpecError: ``enabled`` is not a bool, or ``max_nbytes`` no number of bytes.
    """
    if type(enabled) is not bool:
        raise SpecError(f"enabled must be True or False, not {enabled!r}")
    if max_nbytes is not None and (type(max_nbytes) is not int or max_nbytes < 0):
        raise SpecError(
            f"max_nbytes must be a whole number of bytes, or None for 512 MiB, not {max_nbytes!r}"
        )
    REPLAYS.configure(enabled, max_nbytes)
    RECORDINGS.configure(enabled, max_nbytes)


def graph_replay_nbytes() -> int:
    """Return the device memory that graphs and recordings of repeated calls hold, in bytes, including working memory."""
    return REPLAYS.nbytes + RECORDINGS.nbytes
