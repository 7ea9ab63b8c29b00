"""Statistics of the exchanges of weights and gradients: bytes, times and errors per level."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import torch

from tersor.comm import Exchange, Place, Stopwatch, Volume

LEVELS: Final = ("all", "node", "across")
CODING: Final = "coding"
T = TypeVar("T")


@dataclass(slots=True)
class Traffic:
    """Statistics of the exchanges of either weights or gradients.

    Attributes:
        num_exchanges: number of gathers or scatters, each of one module.
        volumes: bytes that this rank received from others, before and after encoding, by level.
        times: seconds in the collectives of each level, and in the coding between them.
        errors: relative RMS error of what this rank sent in the last exchange whose error was measured, by level.
    """

    num_exchanges: int = 0
    volumes: dict[str, Volume] = field(default_factory=lambda: {x: Volume() for x in LEVELS})
    times: Stopwatch = field(default_factory=lambda: Stopwatch(phases=(*LEVELS, CODING)))
    errors: dict[str, float] = field(default_factory=dict)

    def counted(self, exchange: Exchange[T], place: Place, device: torch.device) -> Exchange[T]:
        """Run an exchange, and count the bytes it moves and the time it takes."""
        self.num_exchanges += 1
        while True:
            with self.times.phase(CODING, device):
                try:
                    step = next(exchange)
                except StopIteration as end:
                    found: T = end.value
                    return found
            with self.times.phase(step.level, device):
                yield step
            num_ranks = len(place.ranks(step.level))
            foreign = (num_ranks - 1) / num_ranks
            moved = Volume(
                round(step.original_nbytes * foreign), round(step.received.nbytes * foreign)
            )
            self.volumes[step.level].add(moved)

    @property
    def volume(self) -> Volume:
        """Total bytes of all levels."""
        total = Volume()
        for volume in self.volumes.values():
            total.add(volume)
        return total


@dataclass(slots=True)
class ShardStats:
    """Bytes that a rank received and the times of its exchanges. ``str`` formats them as a table."""

    num_steps: int = 0
    num_full_gathers: int = 0
    """Gathers that sent weights uncompressed: the first one, and those after the weights were edited."""
    weights: Traffic = field(default_factory=Traffic)
    gradients: Traffic = field(default_factory=Traffic)

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "num_steps": self.num_steps,
            "num_full_gathers": self.num_full_gathers,
            **{name: _config(getattr(self, name)) for name in ("weights", "gradients")},
        }

    def __str__(self) -> str:
        lines = [("", "original MiB", "received MiB", "ratio", "ms", "error")]
        steps = max(1, self.num_steps)
        for name in ("weights", "gradients"):
            traffic: Traffic = getattr(self, name)
            seconds = traffic.times.read()
            for level, volume in traffic.volumes.items():
                if volume.encoded_nbytes:
                    mib = [
                        nbytes / steps / 2**20
                        for nbytes in (volume.original_nbytes, volume.encoded_nbytes)
                    ]
                    error = f"{traffic.errors[level]:.2%}" if level in traffic.errors else ""
                    numbers = f"{mib[0]:.3f}", f"{mib[1]:.3f}", f"{volume.ratio:.2f}"
                    lines.append(
                        (f"{name}, {level}", *numbers, f"{1e3 * seconds[level] / steps:.2f}", error)
                    )
            if traffic.num_exchanges:
                coding = f"{1e3 * seconds[CODING] / steps:.2f}"
                lines.append((f"{name}, {CODING}", "", "", "", coding, ""))
        widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
        rows = [
            "  ".join([x[0].ljust(widths[0]), *map(str.rjust, x[1:], widths[1:])]) for x in lines
        ]
        title = f"{self.num_steps} steps, {self.num_full_gathers} full gathers; per step:"
        return "\n".join([title, *(row.rstrip() for row in rows)])


def _config(traffic: Traffic) -> dict[str, Any]:
    return {
        "num_exchanges": traffic.num_exchanges,
        "levels": {
            level: {"original_nbytes": x.original_nbytes, "encoded_nbytes": x.encoded_nbytes}
            for level, x in traffic.volumes.items()
        },
        "seconds": dict(traffic.times.read()),
        "errors": dict(traffic.errors),
    }
