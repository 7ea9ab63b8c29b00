"""Calls on lists of tensors replayed as CUDA graphs, so that the host launches once, not a dozen times.

A dozen launches take the host longer than an H200 needs for tens of megabytes: 460 us for ``ans`` on 26
look-ups of 256 x 64, of which the device works 33. The third call of a form is captured; later ones
copy what varies between them (tables of addresses and bounds) to where the graph reads it, and replay the
graph; whoever does that copies what it wrote, or reads it, before the next one does.
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
from tersor.kernels.runtime.sparing import is_sparing

_CALLS_BEFORE: Final = 2
"""Calls of a form that are made as they are: most forms do not come a third time."""
_MAX_FORMS: Final = 256
MOST_RESULT_NBYTES: Final = 32 * 2**20
"""Of what a call returns. Copying more takes a device longer than launching takes a host."""
_DEFAULT_MAX_NBYTES: Final = 512 * 2**20
_MAX_DROPS: Final = 8
"""Times that graphs are dropped because they are too many; then no more are captured: they do not fit."""

_T = TypeVar("_T")
_R = TypeVar("_R")
Table = tuple[Any, ...]
"""A function that is ``cached_on_stream``, and its arguments."""


class Form:
    """How often calls of a form were made, whether they can be captured, and the graph once they are.

    Attributes:
        device: that all of them are made on.
        stream: likewise, its address.
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
        form: of ``Replays.form_of``.
        device: of the call.
        varying: tables that the call reads and that differ between calls of its form.
        tensors: of what it returns: the memory that a replay writes to; None if it cannot be copied.
    """

    form: Form
    device: torch.device
    varying: tuple[Table, ...]
    tensors: Callable[[_T], Sequence[torch.Tensor] | None]

    def sources(self) -> list[torch.Tensor]:
        """Return the tables that vary, as they are cached: a graph of the user's own finds them there."""
        return [function(*key) for function, *key in self.varying]


@dataclass(slots=True)
class Replay(Generic[_T]):
    """A captured call of one form, on one stream.

    Attributes:
        tables: that the graph reads in place of ``Call.varying``.
        result: what the call returned, in memory that every replay writes anew.
        written: that memory, tensor by tensor.
        stream: that all replays run on.
        copies: what copies ``written``, once its caller has made it.
        lock: held from a launch until the host has read what the graph wrote to its memory.
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
        """Replay on the current stream; ``varying`` is that of the call."""
        for k, (function, *key) in enumerate(varying):
            if varying[k] != self._varying[k]:
                self.tables[k].copy_(function(*key))
                self._varying[k] = varying[k]
        self._graph.replay()


class Replays:
    """Graphs by form, device and stream; those of all streams share a limit of memory.

    Attributes:
        lock: held while graphs are made, launched or dropped.
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
        """Device memory that graphs hold, of all devices together."""
        return self._nbytes

    @property
    def num_graphs(self) -> int:
        """Graphs that there are."""
        return sum(form.replay is not None for form in self._forms.values())

    def configure(self, is_enabled: bool, max_nbytes: int | None) -> None:
        """Turn replays on or off; drops all graphs and their memory."""
        with self.lock:
            self._is_enabled = is_enabled
            self._max_nbytes = _DEFAULT_MAX_NBYTES if max_nbytes is None else max_nbytes
            self.reset()

    def reset(self) -> None:
        """Forget all forms; drops all graphs and their memory."""
        with self.lock:
            self._drop()
            self._drops_left = _MAX_DROPS

    def form_of(self, form: Hashable, device: torch.device) -> Form | None:
        """Return what is known of a form on the current stream; None if it is not to be replayed.

        Where memory is short nothing is: a graph's working memory is that of calls without a limit.
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
        """Replay the graph of a form and return what ``then`` makes of it, before anybody replays another.

        Graphs of a stream share working memory, so that the next one may write to the result of this one:
        ``then`` must launch what copies it. It must not wait.

        Returns:
            None, and nothing is launched, if there is no graph, memory is short, or the current device and stream
            are not those of the form, or are being captured.
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
        """Count a call that was made; if it was the third one of its form, make it once more and capture it.

        Args:
            call: what was made.
            run: makes it. It uploads nothing itself.
            is_copied: False if it is known that what it returns cannot be copied.
        """
        form = call.form
        form.num_calls += 1
        is_new = form.num_calls <= _CALLS_BEFORE or form.replay is not None or is_sparing()
        if is_new or not is_copied or not form.is_capturable or self._drops_left == 0:
            return
        try:
            # tables of an inference could not be filled in a training
            with torch.inference_mode(False), self.lock:
                self._capture(call, run)
        except (RuntimeError, SpecError) as error:
            # what cannot be captured is called as before
            form.is_capturable = False
            self._captures.pop((call.device, stream_of(call.device)), None)
            logging.getLogger("tersor").debug("a call is not replayed as a CUDA graph: %s", error)

    def _capture(self, call: Call[_T], run: Callable[[], _T]) -> None:
        tables = [source.clone() for source in call.sources()]
        other = dict(zip(call.varying, tables, strict=True))
        with substituted(other):
            # compiles what the forms of these tables may need, which a capture must not
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
            # this one too goes with its form
            call.form.replay = None
            del graph, result, written
            self._drop()
            self._drops_left -= 1

    def _capture_of(self, device: torch.device) -> tuple[Any, torch.cuda.Stream]:
        """Return the memory pool and the capturing stream of the current stream.

        Graphs of one stream run one after the other, so that they share working memory.
        """
        key = (device, stream_of(device))
        if key not in self._captures:
            self._captures[key] = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
        return self._captures[key]

    def _forget_oldest(self) -> None:
        """Forget a form if there are too many: the oldest without a graph, which costs nothing."""
        if len(self._forms) <= _MAX_FORMS:
            return
        for key, form in self._forms.items():
            if form.replay is None:
                del self._forms[key]
                return
        self._drop()
        self._drops_left -= 1

    def _drop(self) -> None:
        """Drop all graphs, once they have run, and give their memory back."""
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
    """True if what is launched now runs on the device and stream of a form, outside of a capture."""
    index = torch.cuda.current_device()
    return (
        index == form.device.index
        and raw_stream(index) == form.stream
        and not torch.cuda.is_current_stream_capturing()
    )


REPLAYS: Final = Replays()


def set_graph_replay(enabled: bool, *, max_nbytes: int | None = None) -> None:
    """Let calls on CUDA tensors be replayed as CUDA graphs, as they are at first, or not.

    A call of `compress`, `encode_batch`, their decoders or an exchange on tensors of the same shapes, dtype and
    kinds of bounds as two calls before it on its stream is captured, and replayed from then on: the host
    launches once, not a dozen times. Inside a capture of your own nothing is replayed, nor is a call with a
    `max_workspace_nbytes`, which never uses the memory of graphs and does not count it.

    Drops all graphs and gives the memory they hold back; waits for them to end.

    Args:
        enabled: False makes every call launch its kernels one by one.
        max_nbytes: device memory that graphs may hold, 512 MiB by default. Graphs are dropped when they hold
            more, and not captured any more where that happens again and again.

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


def graph_replay_nbytes() -> int:
    """Return the device memory that graphs of replayed calls hold, in bytes; working memory included."""
    return REPLAYS.nbytes
