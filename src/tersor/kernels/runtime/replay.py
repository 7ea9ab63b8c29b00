"""Calls on lists of tensors replayed as CUDA graphs, so that the host launches once, not a dozen times.

A dozen launches take the host longer than an H200 needs for tens of megabytes: 460 us for ``ans`` on 26
look-ups of 256 x 64, of which the device works 33. The third call of a form is captured; later ones
fill a table on the device with what varies between them (addresses, bounds), replay the graph, and copy
what it wrote to new memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import torch

from tersor.errors import SpecError
from tersor.kernels.runtime.device_cache import stream_of, substituted

_CALLS_BEFORE: Final = 2
"""Calls of a form that are made as they are: most forms do not come a third time."""
_MAX_FORMS: Final = 256
MOST_RESULT_NBYTES: Final = 32 * 2**20
"""Of what a call returns. Copying more takes a device longer than launching takes a host."""
_DEFAULT_MAX_NBYTES: Final = 512 * 2**20
_MAX_DROPS: Final = 8
"""Times that graphs are dropped because they hold too much; then no more are captured: they do not fit."""
_PART_WORDS: Final = 32
"""Parts of a table start at multiples of 256 bytes, as memory of their own would."""
_PIECE_WORDS: Final = 4
"""Copies start at multiples of 16 bytes, which kernels are compiled for."""

_T = TypeVar("_T")
_Tables = Mapping[tuple[Any, ...], torch.Tensor]


class Varying(NamedTuple):
    """What a call reads that differs from the last call of its form.

    Attributes:
        numbers: compared with those of the last replay: equal ones need no upload.
        parts: int64 or float64 arrays, one after the other in the table; called only to fill it.
    """

    numbers: Hashable
    parts: Callable[[], Sequence[np.ndarray[Any, Any]]]


@dataclass(slots=True)
class Replay(Generic[_T]):
    """A captured call of one form, on one stream.

    Attributes:
        parts: of the table, one for each of ``Varying.parts``.
        result: what the call returned, in memory that every replay writes anew.
        written: that memory, tensor by tensor, each of a multiple of 4 bytes.
    """

    parts: Sequence[torch.Tensor]
    result: _T
    written: Sequence[torch.Tensor]
    _table: torch.Tensor
    _graph: Any
    _held: Sequence[Any] = field(repr=False)
    _numbers: Hashable = None
    _words: list[torch.Tensor] = field(init=False, repr=False)
    _lengths: list[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """See ``written`` as words of one dtype, so that one launch copies all of it."""
        self._words = [x.reshape(-1).view(torch.int32) for x in self.written]
        self._lengths = [
            part for x in self._words[:-1] for part in (x.numel(), -x.numel() % _PIECE_WORDS)
        ]

    def launch(self, call: Call[_T]) -> None:
        """Replay on the current stream with what varies in ``call``."""
        self.fill(call.varying)
        call.prepare(self.parts)
        self._graph.replay()

    def fill(self, varying: Varying) -> None:
        """Upload what varies, if it is not there already."""
        if varying.numbers != self._numbers:
            _fill(self._table, varying)
            self._numbers = varying.numbers

    def copies(self) -> list[torch.Tensor]:
        """Return copies of ``written``; the last one, which may be large, has memory of its own."""
        last = self._words[-1]
        memory = last.new_empty(sum(self._lengths)).split_with_sizes(self._lengths)[::2]
        copies = [*memory, torch.empty_like(last)]
        torch._foreach_copy_(copies, self._words)
        pairs = zip(copies, self.written, strict=True)
        return [copy.view(x.dtype).view(x.shape) for copy, x in pairs]


class Form:
    """How often calls of a form were made, whether they can be captured, and the graph once they are."""

    __slots__ = ("is_capturable", "num_calls", "replay")

    def __init__(self) -> None:
        self.num_calls = 0
        self.is_capturable = True
        self.replay: Replay[Any] | None = None


@dataclass(frozen=True, slots=True)
class Call(Generic[_T]):
    """One call that may be replayed.

    Attributes:
        form: of ``Replays.form_of``.
        device: of the call.
        varying: what it reads that differs between calls of its form.
        tables: gives ``substituted`` its tables, made of the parts of the table of ``varying``.
        tensors: of what it returns: the memory that a replay writes to, and the caller copies; None if it
            cannot be copied.
        prepare: fills those parts that only the device knows, before every replay.
    """

    form: Form
    device: torch.device
    varying: Varying
    tables: Callable[[Sequence[torch.Tensor]], _Tables]
    tensors: Callable[[_T], Sequence[torch.Tensor] | None]
    prepare: Callable[[Sequence[torch.Tensor]], None] = lambda _: None


class Replays:
    """Graphs by form, device and stream; those of all streams share a limit of memory.

    Attributes:
        lock: held while a graph is replayed and its result copied, by whoever does both.
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

    def configure(self, is_enabled: bool, max_nbytes: int | None) -> None:
        """Turn replays on or off; drops all graphs and their memory."""
        with self.lock:
            self._is_enabled = is_enabled
            self._max_nbytes = _DEFAULT_MAX_NBYTES if max_nbytes is None else max_nbytes
            self._drops_left = _MAX_DROPS
            self._drop()

    def form_of(self, form: Hashable, device: torch.device) -> Form | None:
        """Return what is known of a form on the current stream; None if it is not to be replayed."""
        if not self._is_enabled or device.type != "cuda":
            return None
        if torch.cuda.is_current_stream_capturing():
            return None
        key = (form, device, stream_of(device))
        found = self._forms.get(key)
        if found is None:
            found = self._forms[key] = Form()
            if len(self._forms) > _MAX_FORMS:
                self._forget_oldest()
        else:
            self._forms.move_to_end(key)
        return found

    def note(self, call: Call[_T], run: Callable[[Sequence[torch.Tensor]], _T]) -> None:
        """Count a call that was made; if it was the third one of its form, make it once more and capture it.

        ``run`` makes the call, given the parts of the table that it reads what varies from. It uploads nothing.
        """
        form = call.form
        form.num_calls += 1
        is_new = form.num_calls <= _CALLS_BEFORE
        if is_new or not form.is_capturable or self._drops_left == 0:
            return
        table = torch.empty(_num_words(call.varying), dtype=torch.int64, device=call.device)
        _fill(table, call.varying)
        parts = _parts_of(table, call.varying)
        call.prepare(parts)
        try:
            with substituted(call.tables(parts)):
                # compiles what the table's own form may need, which a capture must not
                result = run(parts)
        except (RuntimeError, SpecError):
            form.is_capturable = False
            return
        written = call.tensors(result)
        if written is None or sum(x.nbytes for x in written) > MOST_RESULT_NBYTES:
            form.is_capturable = False
            return
        with self.lock:
            self._capture(call, table, parts, run)

    def _capture(
        self,
        call: Call[_T],
        table: torch.Tensor,
        parts: Sequence[torch.Tensor],
        run: Callable[[Sequence[torch.Tensor]], _T],
    ) -> None:
        pool, stream = self._capture_of(call.device)
        graph: Any = torch.cuda.CUDAGraph()
        before_nbytes = torch.cuda.memory_reserved(call.device)
        try:
            with substituted(call.tables(parts)) as held, torch.cuda.stream(stream):
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    result = run(parts)
                finally:
                    graph.capture_end()
        except (RuntimeError, SpecError):
            # what cannot be captured is called as before
            call.form.is_capturable = False
            return
        self._nbytes += max(0, torch.cuda.memory_reserved(call.device) - before_nbytes)
        if self._nbytes > self._max_nbytes:
            self._drop()
            self._drops_left -= 1
            return
        written = call.tensors(result) or ()
        call.form.replay = Replay(parts, result, written, table, graph, held)

    def _capture_of(self, device: torch.device) -> tuple[Any, torch.cuda.Stream]:
        """Return the memory pool and the capturing stream of the current stream.

        Graphs of one stream run one after the other, so that they share working memory.
        """
        key = (device, stream_of(device))
        if key not in self._captures:
            self._captures[key] = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device)
        return self._captures[key]

    def _forget_oldest(self) -> None:
        _, form = self._forms.popitem(last=False)
        if form.replay is not None:
            # its memory is shared with the others of its stream
            self._drop()

    def _drop(self) -> None:
        """Drop all graphs, once they have run, and their memory."""
        for device, _ in self._captures:
            torch.cuda.synchronize(device)
        self._forms.clear()
        self._captures.clear()
        self._nbytes = 0


def _fill(table: torch.Tensor, varying: Varying) -> None:
    """Upload what varies, without waiting."""
    words = np.zeros(table.numel(), dtype=np.int64)
    start = 0
    for part in varying.parts():
        words[start : start + part.size] = part.view(np.int64).reshape(-1)
        start += _padded_words(part.size)
    table.copy_(torch.from_numpy(words).pin_memory(), non_blocking=True)


def _padded_words(num_words: int) -> int:
    return -(-num_words // _PART_WORDS) * _PART_WORDS


def _num_words(varying: Varying) -> int:
    return sum(_padded_words(part.size) for part in varying.parts())


def _parts_of(table: torch.Tensor, varying: Varying) -> list[torch.Tensor]:
    found, start = [], 0
    for part in varying.parts():
        piece = table[start : start + part.size]
        if part.dtype == np.float64:
            piece = piece.view(torch.float64)
        found.append(piece.view(part.shape))
        start += _padded_words(part.size)
    return found


REPLAYS: Final = Replays()


def set_graph_replay(enabled: bool, *, max_nbytes: int | None = None) -> None:
    """Let calls on CUDA tensors be replayed as CUDA graphs, as they are at first, or not.

    A call of `compress`, `encode_batch`, their decoders or an exchange on tensors of the same shapes, dtype and
    kinds of bounds as two calls before it on its stream is captured, and replayed from then on: the host
    launches once, not a dozen times. Inside a capture of your own nothing is replayed.

    Drops all graphs and the memory they hold; waits for them to end.

    Args:
        enabled: False makes every call launch its kernels one by one.
        max_nbytes: device memory that graphs may hold, 512 MiB by default. Graphs are dropped when they hold
            more, and not captured any more where that happens again and again.

    Raises:
        SpecError: ``max_nbytes`` is negative.
    """
    if max_nbytes is not None and max_nbytes < 0:
        raise SpecError(f"max_nbytes must be at least 0, not {max_nbytes}")
    REPLAYS.configure(enabled, max_nbytes)


def graph_replay_nbytes() -> int:
    """Return the device memory that graphs of replayed calls hold, in bytes; working memory included."""
    return REPLAYS.nbytes
