"""Statistics of an exchange: bytes sent, and the time of each phase."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields
from typing import Any, Final

from tersor.comm import PHASES, Stopwatch, Volume
from tersor.errors import SpecError

DIRECTIONS: Final = ("forward", "backward")


@dataclass(slots=True)
class ExchangeStats:
    """Bytes that one rank, or all ranks, have sent since the statistics were last reset, and the times.

    ``str`` formats a table of the bytes of all exchanges before and after encoding, their ratio, and milliseconds per
    exchange. Bytes include the rows that a rank sends to itself.

    Attributes:
        num_exchanges: number of forward exchanges.
        tables: forward bytes of each table that this rank owns, by table number.
        backward: bytes of all gradients.
        forward_times: seconds in each phase of the forward exchanges.
        backward_times: seconds in each phase of the backward exchanges.
        names: table names for ``str``, by number; the numbers are shown if it is empty.
    """

    num_exchanges: int = 0
    tables: dict[int, Volume] = field(default_factory=dict)
    backward: Volume = field(default_factory=Volume)
    forward_times: Stopwatch = field(default_factory=Stopwatch)
    backward_times: Stopwatch = field(default_factory=Stopwatch)
    names: tuple[str, ...] = field(default=(), compare=False)

    @property
    def forward(self) -> Volume:
        """Total forward bytes of all tables."""
        total = Volume()
        for volume in self.tables.values():
            total.add(volume)
        return total

    def count_forward(self, tables: Iterable[int], sent: Iterable[Volume]) -> None:
        """Add the volumes of a forward exchange, given the table of each."""
        for table, volume in zip(tables, sent, strict=True):
            self.tables.setdefault(table, Volume()).add(volume)

    def __str__(self) -> str:
        names = ("", "original MiB", "encoded MiB", "ratio", *(f"{name} ms" for name in PHASES))
        lines = [
            names,
            _line("forward", self.forward, self._milliseconds(self.forward_times)),
            *(_line(f"  table {self._name(k)}", x) for k, x in sorted(self.tables.items())),
            _line("backward", self.backward, self._milliseconds(self.backward_times)),
        ]
        widths = [max(len(line[k]) for line in lines) for k in range(len(names))]
        rows = (
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
            for line in lines
        )
        title = f"{self.num_exchanges} exchanges: MiB of all, ms of one on average"
        return "\n".join([title, *(row.rstrip() for row in rows)])

    def _name(self, table: int) -> str:
        return self.names[table] if self.names else str(table)

    def _milliseconds(self, times: Stopwatch) -> list[float]:
        return [1e3 * times.read()[name] / max(1, self.num_exchanges) for name in PHASES]

    @classmethod
    def merged(cls, every: Sequence[ExchangeStats]) -> ExchangeStats:
        """Merge the statistics of several ranks.

        Bytes are summed. The time of each phase is that of the slowest rank. The number of exchanges is the maximum,
        because ranks take part in every exchange together.
        """
        found = cls(num_exchanges=max((one.num_exchanges for one in every), default=0))
        for one in every:
            found.backward.add(one.backward)
            found.count_forward(one.tables, one.tables.values())
        found.forward_times = Stopwatch.slowest([one.forward_times for one in every])
        found.backward_times = Stopwatch.slowest([one.backward_times for one in every])
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form.

        The keys are ``num_exchanges``, ``forward``, ``backward`` and ``tables``. ``forward`` and ``backward`` each
        contain ``original_nbytes``, ``encoded_nbytes``, ``ratio``, and the ``seconds`` of ``encode``, ``sizes``,
        ``payload`` and ``decode``. ``tables`` maps table numbers as strings to ``[original bytes, encoded bytes]``.
        """
        return {
            "num_exchanges": self.num_exchanges,
            "forward": _direction(self.forward, self.forward_times),
            "backward": _direction(self.backward, self.backward_times),
            "tables": {str(table): list(astuple(x)) for table, x in sorted(self.tables.items())},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ExchangeStats:
        """Restore statistics from their JSON form.

        Raises:
            SpecError: ``values`` is not in that form.
        """
        try:
            forward, backward = values["forward"], values["backward"]
            return cls(
                num_exchanges=_count(values["num_exchanges"]),
                tables={
                    int(table): Volume(_count(original), _count(encoded))
                    for table, (original, encoded) in values["tables"].items()
                },
                backward=Volume(*(_count(backward[f.name]) for f in fields(Volume))),
                forward_times=Stopwatch(forward["seconds"]),
                backward_times=Stopwatch(backward["seconds"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SpecError("these are no statistics of an exchange") from error


def _count(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def _line(name: str, volume: Volume, milliseconds: Sequence[float] = ()) -> list[str]:
    """Return the cells of one row of the text table."""
    shown = (volume.original_nbytes / 2**20, volume.encoded_nbytes / 2**20, volume.ratio)
    blank = [""] * (len(PHASES) - len(milliseconds))
    return [name, *(f"{value:,.2f}" for value in (*shown, *milliseconds)), *blank]


def _direction(volume: Volume, times: Stopwatch) -> dict[str, Any]:
    return {**asdict(volume), "ratio": volume.ratio, "seconds": dict(times.read())}
