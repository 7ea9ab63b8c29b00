"""Nodes as network namespaces, each with one or more ranks, on links that the kernel throttles.

One namespace holds a bridge; the namespace of each node has a link to it. Both ends of every link are
shaped, which limits a node in sending and receiving. Ranks of one node share its address, so traffic
between them stays on its loopback, which is not shaped. All links are created inside the namespaces, so
the network is isolated from the rest of the machine in both directions.
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
"""Runs a command and returns its output; raises ``BackendUnavailableError`` if it fails."""

INTERFACE: Final = "link0"
_NAME: Final = re.compile(r"(tersor-(\d+)-(?:hub|\d+))(?!\S)")
_SUBNET: Final = "10.77.0"
MAX_RANKS: Final = 64
_BURST_S: Final = 200e-6
"""Burst of a link, as transmission time. It covers the latency of kernel timers on a busy machine, and is
short compared with any payload, so small payloads are throttled like large ones."""
_LEAST_BURST_NBYTES: Final = 3200
"""Two packets, the minimum that can be sent."""
_QUEUE_NBYTES: Final = 64 * 2**20
"""Capacity for all data in flight: a lost packet would cost more time than its transmission."""
_MOST_SEGMENT_NBYTES: Final = 65536
_LEAST_SEGMENT_NBYTES: Final = 12000
"""Smallest useful GSO segment. Segments must fit in the burst of a link, or tbf splits each into packets of
1500 bytes. On two busy cores and 4 links of 1 Gbit/s that took float32's payload from 10 to 18 ms; at 100
Mbit/s, where bursts are smaller, there are few enough packets."""
_COMMAND_TIMEOUT_S: Final = 20.0


def run_command(command: Command) -> str:
    """Run ``ip`` or ``tc`` and return its output.

    Raises:
        BackendUnavailableError: the command is missing or failed; the message quotes it.
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
    """The namespaces of one process: a network that exists from ``open`` to ``close``.

    Attributes:
        kind: of the network.
        interface: name of the interface in every node.
        names: of all namespaces, that of the bridge first.
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
        """Plan the namespaces; ``open`` creates them.

        Args:
            num_ranks: number of ranks.
            run: runs the commands that create, throttle and remove namespaces.
            ranks_per_node: number of ranks that share a namespace and its link; the last may have fewer.
            pid: of the owning process, part of every name; None for this process.
        """
        self._run, self._ranks_per_node = run, ranks_per_node
        self._prefix = f"tersor-{os.getpid() if pid is None else pid}-"
        self._hub, self._nodes = f"{self._prefix}hub", range(-(-num_ranks // ranks_per_node))
        self.names = [self._hub, *map(self._name, self._nodes)]

    def _name(self, node: int) -> str:
        return f"{self._prefix}{node}"

    def build(self) -> list[Command]:
        """Return the commands that create the namespaces and their links."""
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
                # no automatic IPv6 address: gloo must find only the one below
                (*own, "link", "set", INTERFACE, "addrgenmode", "none"),
                (*own, "address", "add", address, "dev", INTERFACE),
                (*own, "link", "set", INTERFACE, "up"),
                # fixed congestion control: results must not depend on a sysctl
                (*own, "route", "replace", f"{_SUBNET}.0/24", "dev", INTERFACE, "congctl", "cubic"),
            ]  # fmt: skip
        return commands

    def shaping(
        self, bandwidth: Bandwidth, connecting_for: Bandwidth | None = None
    ) -> list[Command]:
        """Return the commands that set the bandwidth at both ends of every link.

        Args:
            bandwidth: new bandwidth.
            connecting_for: later bandwidth of connections established now, if different. It determines
                the segment size, which a connection retains from the time it is established.
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
        """Remove leftovers of dead processes, and create the namespaces.

        Raises:
            BackendUnavailableError: that is not possible on this machine; nothing is left behind.
        """
        remove_leftovers(self._run)
        try:
            for command in self.build():
                self._run(command)
            # detects a kernel without tbf before any rank is started
            self.throttle(Bandwidth(10**9))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the namespaces; missing ones are ignored."""
        remove(self.names, self._run)

    def prefix(self, rank: int) -> list[str]:
        """Return the prefix of a command line that runs it in a rank's namespace."""
        return ["ip", "netns", "exec", self._name(rank // self._ranks_per_node)]

    def throttle(self, bandwidth: Bandwidth, connecting_for: Bandwidth | None = None) -> None:
        """Set the bandwidth of every link; see ``shaping``."""
        for command in self.shaping(bandwidth, connecting_for):
            self._run(command)


def _burst_nbytes(bandwidth: Bandwidth) -> int:
    return max(_LEAST_BURST_NBYTES, round(bandwidth.bits_per_s / 8 * _BURST_S))


def remove(names: Iterable[str], run: Run) -> None:
    """Remove namespaces with their links; failures are ignored."""
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
    """Remove tersor's namespaces whose owning process is dead."""
    lines = run(("ip", "netns", "list")).splitlines()
    found = [_NAME.match(line) for line in lines]
    remove([one[1] for one in found if one is not None and not is_alive(int(one[2]))], run)
