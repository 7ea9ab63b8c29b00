"""Selection of the network for ranks: throttled namespaces if possible, else plain loopback."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, Final, NoReturn, TypeAlias

from tersor.errors import BackendUnavailableError, SpecError
from tersor.workloads.network.bandwidth import Bandwidth
from tersor.workloads.network.namespaces import MAX_RANKS, Namespaces

_TOOLS: Final = ("ip", "tc")
_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


class Loopback:
    """Unthrottled loopback shared by all ranks; same interface as ``Namespaces``."""

    kind: Final = "loopback"
    interface: Final = "lo"

    def prefix(self, rank: int) -> list[str]:
        """Return an empty prefix: ranks run in the namespace of this process."""
        del rank
        return []

    def throttle(self, bandwidth: Bandwidth, connecting_for: Bandwidth | None = None) -> None:
        """Do nothing: loopback is not throttled."""


Network: TypeAlias = Namespaces | Loopback
"""Network that ranks run on."""


def check_available() -> None:
    """Raise ``BackendUnavailableError``, with the reason, if namespaces cannot be created here."""
    if not sys.platform.startswith("linux"):
        raise BackendUnavailableError("network namespaces exist only on Linux")
    if os.geteuid() != 0:
        raise BackendUnavailableError("network namespaces need root")
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        raise BackendUnavailableError(
            f"network namespaces need the command {missing[0]} of the package iproute2"
        )


@contextmanager
def open_network(num_ranks: int, ranks_per_node: int = 1) -> Iterator[Network]:
    """Create throttled links between nodes of ``ranks_per_node`` ranks for the duration of the context.

    They are removed when it ends, including by an error, Ctrl-C, SIGTERM or SIGHUP. Namespaces of a process
    that was killed are removed by the next call.

    Raises:
        BackendUnavailableError: this machine does not allow it; use ``Loopback`` instead.
        SpecError: ``num_ranks`` or ``ranks_per_node`` is out of range.
    """
    if not 1 <= num_ranks <= MAX_RANKS or ranks_per_node < 1:
        raise SpecError(
            f"a network has 1 to {MAX_RANKS} ranks, and a node 1 at least, not {num_ranks} and "
            f"{ranks_per_node}"
        )
    check_available()
    namespaces = Namespaces(num_ranks, ranks_per_node=ranks_per_node)
    with _ended_by_signals():
        namespaces.open()
        try:
            yield namespaces
        finally:
            namespaces.close()


@contextmanager
def open_best_network(
    num_ranks: int, ranks_per_node: int, on_note: Callable[[str], None]
) -> Iterator[Network]:
    """Create throttled links; if that fails, report the reason to ``on_note`` and yield loopback."""
    with ExitStack() as stack:
        network: Network
        try:
            network = stack.enter_context(open_network(num_ranks, ranks_per_node))
        except BackendUnavailableError as error:
            on_note(f"ranks use loopback, which is not throttled: {error}")
            network = Loopback()
        yield network


def _end(number: int, frame: FrameType | None) -> NoReturn:
    del frame
    raise SystemExit(128 + number)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn signals that would end the process at once into ``SystemExit``; main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[Any, Any] = {number: signal.signal(number, _end) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
