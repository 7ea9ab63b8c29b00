"""Nodes as network namespaces, each with one rank or several, on links that the kernel throttles.

One namespace holds a bridge, and one per node a link to it. Both ends of every link are shaped, so
that a node neither sends nor receives faster than its bandwidth. Ranks of one node have its address, so
that what they send each other stays on its loopback, which is not shaped. All links are made inside the
namespaces: nothing of it can be reached from outside, and nothing outside from it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from tersor.errors import BackendUnavailableError
from tersor.workloads.network.bandwidth import Bandwidth

Command = tuple[str, ...]
Run = Callable[[Command], str]
"""Runs a command and returns what it wrote; raises ``BackendUnavailableError`` if it failed."""

INTERFACE: Final = "link0"
_NAME: Final = re.compile(r"(tersor-(\d+)-(?:hub|\d+))(?!\S)")
_SUBNET: Final = "10.77.0"
MAX_RANKS: Final = 64
_BURST_S: Final = 200e-6
"""Time of sending that a link may save up: as long as a timer of the kernel may be late on a busy
machine, and short beside any payload, so that small payloads are throttled like large ones."""
_LEAST_BURST_NBYTES: Final = 3200
"""Two packets: less cannot be sent at all."""
_QUEUE_NBYTES: Final = 64 * 2**20
"""Room for all that ranks have on the way: a lost packet would cost more time than its sending."""
_MOST_SEGMENT_NBYTES: Final = 65536
_LEAST_SEGMENT_NBYTES: Final = 12000
"""Packets are handed on in segments as large as a link's burst can hold, or else tbf cuts each into
packets of 1500 bytes. On two busy cores and 4 links of 1 Gbit/s that took float32's payload from 10 to
18 ms; at 100 Mbit/s, where bursts are smaller, there are few enough of them."""
_COMMAND_TIMEOUT_S: Final = 20.0


def run_command(command: Command) -> str:
    """Run ``ip`` or ``tc`` and return its output.

    Raises:
        BackendUnavailableError: the command is missing, or failed; with its own words.
    """
    try:
        done = subprocess.run(  # noqa: S603 (commands of the plan below)
            command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BackendUnavailableError(f"{command[0]} could not be run: {error}") from error
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise BackendUnavailableError(f"'{' '.join(command)}' failed: {reason}")
    return done.stdout


class Namespaces:
    """The namespaces of one process, as a network that exists from ``open`` to ``close``.

    Attributes:
        kind: of the network.
        interface: the name of every node's interface.
        names: all namespaces, that of the bridge first.
    """

    kind: Final = "namespaces"
    interface: Final = INTERFACE

    def __init__(
        self,
        num_ranks: int,
        run: Run = run_command,
        *,
        ranks_per_node: int = 1,
        pid: int | None = None,
    ) -> None:
        """Plan the namespaces; nothing is made yet.

        Args:
            num_ranks: how many ranks there are.
            run: runs the commands that make, throttle and remove namespaces.
            ranks_per_node: how many of them share a namespace and its link; the last may have fewer.
            pid: of the process that owns them, part of every name; None for this one.
        """
        self._run, self._ranks_per_node = run, ranks_per_node
        self._prefix = f"tersor-{os.getpid() if pid is None else pid}-"
        self._hub, self._nodes = f"{self._prefix}hub", range(-(-num_ranks // ranks_per_node))
        self.names = [self._hub, *map(self._name, self._nodes)]

    def _name(self, node: int) -> str:
        return f"{self._prefix}{node}"

    def build(self) -> list[Command]:
        """Return what makes the namespaces and joins them."""
        hub = ("ip", "-n", self._hub)
        commands: list[Command] = [
            ("ip", "netns", "add", self._hub),
            (*hub, "link", "add", "bridge0", "type", "bridge"),
            (*hub, "link", "set", "bridge0", "up"),
        ]
        for node in self._nodes:
            name, port = self._name(node), f"port{node}"
            own, address = ("ip", "-n", name), f"{_SUBNET}.{node + 1}/24"
            commands += [
                ("ip", "netns", "add", name),
                (*own, "link", "set", "lo", "up"),
                (*hub, "link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", name),
                (*hub, "link", "set", port, "master", "bridge0", "up"),
                # no address of its own making: gloo must find only this one
                (*own, "link", "set", INTERFACE, "addrgenmode", "none"),
                (*own, "address", "add", address, "dev", INTERFACE),
                (*own, "link", "set", INTERFACE, "up"),
                # the same congestion control everywhere: results must not depend on a sysctl
                (*own, "route", "replace", f"{_SUBNET}.0/24", "dev", INTERFACE, "congctl", "cubic"),
            ]  # fmt: skip
        return commands

    def shaping(
        self, bandwidth: Bandwidth, connecting_for: Bandwidth | None = None
    ) -> list[Command]:
        """Return what gives both ends of every link a bandwidth, whichever they had.

        Args:
            bandwidth: from now on.
            connecting_for: what follows for connections that are made now, where that is another one:
                they keep the segments that a link has when they are made.
        """
        burst = _burst_nbytes(bandwidth)
        shape = (
            "root", "tbf", "rate", f"{bandwidth.bits_per_s}bit", "burst", str(burst),
            "limit", str(_QUEUE_NBYTES),
        )  # fmt: skip
        segment = min(_MOST_SEGMENT_NBYTES, _burst_nbytes(connecting_for or bandwidth) * 3 // 4)
        if segment < _LEAST_SEGMENT_NBYTES:
            segment = _MOST_SEGMENT_NBYTES
        ends = [(self._name(node), INTERFACE) for node in self._nodes]
        ends += [(self._hub, f"port{node}") for node in self._nodes]
        commands: list[Command] = []
        for name, device in ends:
            commands += [
                ("tc", "-n", name, "qdisc", "replace", "dev", device, *shape),
                ("ip", "-n", name, "link", "set", device, "gso_max_size", str(segment)),
            ]
        return commands

    def open(self) -> None:
        """Remove what dead processes left, and make the namespaces.

        Raises:
            BackendUnavailableError: that is not possible here; nothing is left behind.
        """
        remove_leftovers(self._run)
        try:
            for command in self.build():
                self._run(command)
            # tried out at once: a kernel without tbf is found before any rank is started
            self.throttle(Bandwidth(10**9))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the namespaces; those that are gone already do not matter."""
        remove(self.names, self._run)

    def prefix(self, rank: int) -> list[str]:
        """Return what a command line begins with to run at a rank's place."""
        return ["ip", "netns", "exec", self._name(rank // self._ranks_per_node)]

    def throttle(self, bandwidth: Bandwidth, connecting_for: Bandwidth | None = None) -> None:
        """Give every link a bandwidth; see ``shaping``."""
        for command in self.shaping(bandwidth, connecting_for):
            self._run(command)


def _burst_nbytes(bandwidth: Bandwidth) -> int:
    return max(_LEAST_BURST_NBYTES, round(bandwidth.bits_per_s / 8 * _BURST_S))


def remove(names: Iterable[str], run: Run) -> None:
    """Remove namespaces, and with them their links."""
    for name in names:
        with suppress(BackendUnavailableError):
            run(("ip", "netns", "delete", name))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def remove_leftovers(run: Run, is_alive: Callable[[int], bool] = _is_alive) -> None:
    """Remove those namespaces of ours whose process was killed before it could."""
    lines = run(("ip", "netns", "list")).splitlines()
    found = [_NAME.match(line) for line in lines]
    remove([one[1] for one in found if one is not None and not is_alive(int(one[2]))], run)
