"""A cache of small tables on a device, so that a training loop uploads each of them once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from threading import local
from typing import Any, Final, TypeVar

import torch

from tersor.errors import SpecError
from tersor.kernels.runtime.recording import log_table

_MAX_TABLES: Final = 512
"""Most recently used tables that a cache holds."""
_T = TypeVar("_T")
_streams: Final[dict[tuple[int, int], Any]] = {}
"""Stream objects by the index of their device and their handle."""


class _Substitution(local):
    """The substitution that is active in this thread, if any."""

    tables: Mapping[tuple[Any, ...], Any] | None = None
    held: list[Any] | None = None


_substitution: Final = _Substitution()


@contextmanager
def substituted(tables: Mapping[tuple[Any, ...], Any]) -> Iterator[list[Any]]:
    """Make functions wrapped by ``cached_on_stream`` return these tables in this thread, inside the block.

    Args:
        tables: keyed by function and arguments, as in ``{(on_device, numbers, device): table}``.

    Yields:
        A list of the cached tables that a CUDA graph captured in the block reads. They must stay alive
        as long as the graph may be replayed.
    """
    _substitution.tables, _substitution.held = tables, []
    try:
        yield _substitution.held
    finally:
        _substitution.tables = _substitution.held = None


def check_substituted(function: Callable[..., Any], *key: Any) -> None:
    """Inside ``substituted``, refuse a table that varies between replays but is not substituted.

    Raises:
        SpecError: a replay would read the current contents of the table again.
    """
    if _substitution.tables is not None and (function, *key) not in _substitution.tables:
        raise SpecError("a call that reads addresses of some of its tensors cannot be replayed")


def stream_of(device: torch.device) -> int:
    """Return the handle of the current stream of a CUDA device, without creating a stream object."""
    return raw_stream(_index_of(device))


def current_stream(device: torch.device) -> Any:
    """Return ``torch.cuda.current_stream(device)``, always the same object for a stream."""
    index = _index_of(device)
    key = index, raw_stream(index)
    found = _streams.get(key)
    if found is None:
        found = _streams[key] = torch.cuda.current_stream(index)
    return found


def is_current(stream: Any) -> bool:
    """True if a CUDA stream and its device are the current ones of this thread."""
    index = torch.cuda.current_device()
    return bool(stream.device_index == index and stream.cuda_stream == raw_stream(index))


def _index_of(device: torch.device) -> int:
    index: int | None = device.index
    # "cuda" without an index means the current device
    return torch.cuda.current_device() if index is None else index


def raw_stream(device_index: int) -> int:
    """Return the handle of the current stream of a CUDA device."""
    found: int = torch._C._cuda_getCurrentRawStream(device_index)  # noqa: SLF001 - as Triton asks
    return found


def cached_on_stream(make: Callable[..., _T]) -> Callable[..., _T]:
    """Cache what ``make(*key)`` returns for recent arguments; the last argument is the device.

    On CUDA a table belongs to the stream it was made on. Another stream makes its own, since it
    would not wait for the upload. During graph capture the function returns the table made by the
    warm-up. That table is then never evicted, because every replay reads it; inside ``substituted``
    the owner of the graph holds it instead.

    The returned function raises ``SpecError`` if a graph is captured without a warm-up.
    """
    recent: OrderedDict[Any, _T] = OrderedDict()
    captured: dict[tuple[Any, ...], _T] = {}

    def while_capturing(key: tuple[Any, ...]) -> _T:
        if key in captured:
            return captured[key]
        made = [value for (_, other), value in reversed(recent.items()) if other == key]
        if not made:
            raise SpecError("make the same call once before capturing it in a CUDA graph")
        if _substitution.held is None:
            captured[key] = made[0]
        else:
            _substitution.held.append(made[0])
        return made[0]

    def put(place: Hashable, value: _T) -> None:
        # not ``move_to_end``, as another thread may have dropped it
        recent.pop(place, None)
        recent[place] = value
        while len(recent) > _MAX_TABLES:
            recent.popitem(last=False)

    @wraps(make)
    def found(*key: Any) -> _T:
        if _substitution.tables and (found, *key) in _substitution.tables:
            table: _T = _substitution.tables[found, *key]
            return table
        stream = None
        if key[-1].type == "cuda":
            if torch.cuda.is_current_stream_capturing():
                return while_capturing(key)
            stream = stream_of(key[-1])
        place = (stream, key)
        value = recent.get(place)
        if value is None:
            value = make(*key)
        put(place, value)
        log_table(put, place, value)
        return value

    return found


def copy_async(table: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a CPU tensor on ``device``, without waiting for the copy."""
    if device.type != "cuda":
        return table.to(device)
    return table.pin_memory().to(device, non_blocking=True)


def to_device_async(
    numbers: Sequence[Any], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return the numbers as a tensor on ``device``, without waiting for the copy."""
    # pinned when it is made, which saves ``copy_async`` an allocation and a copy
    is_cuda = device.type == "cuda"
    table = torch.tensor(numbers, dtype=dtype, device="cpu", pin_memory=is_cuda)
    return table.to(device, non_blocking=is_cuda)


@cached_on_stream
def on_device(numbers: tuple[int, ...], device: torch.device) -> torch.Tensor:
    """Return numbers as an int64 tensor on the device, cached between calls."""
    return to_device_async(numbers, torch.int64, device)
