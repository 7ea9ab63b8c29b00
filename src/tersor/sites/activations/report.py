"""What became of the tensors that autograd saved, and what that cost and gained."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import RLock
from typing import Any, Final

from tersor.policy import Similarity

PARAMETERS: Final = "parameters"
ELSEWHERE: Final = "held by others"
_FREE: Final = (PARAMETERS, ELSEWHERE)
"""Forms whose memory is there in any case."""


@dataclass(slots=True)
class Tally:
    """Tensors of one form: how many, their bytes, and the bytes that are held for them."""

    num_tensors: int = 0
    original_nbytes: int = 0
    held_nbytes: int = 0

    @property
    def ratio(self) -> float:
        """Original over held bytes; infinite where nothing is held."""
        return self.original_nbytes / self.held_nbytes if self.held_nbytes else float("inf")


class Live:
    """Bytes that are held at this moment, counted by several threads."""

    def __init__(self) -> None:
        """Start with nothing."""
        self.lock = RLock()
        self.nbytes = 0


class Ledger:
    """What one step saved, by form. Entries change it until they are gone."""

    def __init__(self, live: Live) -> None:
        """Start an empty one."""
        self._live = live
        self.forms: dict[str, Tally] = {}
        self.num_duplicates = 0
        self.duplicate_nbytes = 0
        self.num_coded_values = self.coded_nbytes = 0

    def hold(self, entry: Any, nbytes: int) -> None:
        """Count an entry under its reason."""
        with self._live.lock:
            self.keep(entry.reason, entry.original_nbytes, nbytes)
            self._live.nbytes += nbytes if is_costly(entry.reason) else 0

    def keep(self, reason: str, original_nbytes: int, held_nbytes: int) -> None:
        """Count a tensor of which nobody says when it is freed."""
        tally = self.forms.get(reason)
        if tally is None:
            tally = self.forms[reason] = Tally()
        tally.num_tensors += 1
        tally.original_nbytes += original_nbytes
        tally.held_nbytes += held_nbytes

    def release(self, entry: Any, nbytes: int) -> None:
        """Count an entry no longer: it takes another form."""
        with self._live.lock:
            self._drop(entry.reason, entry.original_nbytes, nbytes)
            self.freed(entry.reason, nbytes)

    def move(self, reason: str, to: str, nbytes: int) -> None:
        """Count a tensor that was kept as it is, and is gone, under another reason."""
        with self._live.lock:
            self._drop(reason, nbytes, nbytes)
            self.keep(to, nbytes, nbytes)

    def _drop(self, reason: str, original_nbytes: int, held_nbytes: int) -> None:
        tally = self.forms[reason]
        tally.num_tensors -= 1
        tally.original_nbytes -= original_nbytes
        tally.held_nbytes -= held_nbytes
        if not tally.num_tensors:
            del self.forms[reason]

    def count_less(self, entry: Any) -> None:
        """Take the bytes of an entry out of the original ones: another one has them."""
        with self._live.lock:
            self.forms[entry.reason].original_nbytes -= entry.original_nbytes
            entry.original_nbytes = 0

    def freed(self, reason: str, nbytes: int) -> None:
        """Count the memory of an entry as free; the step did hold it."""
        with self._live.lock:
            self._live.nbytes -= nbytes if is_costly(reason) else 0

    def duplicate(self, nbytes: int) -> None:
        """Count a tensor that was saved before."""
        with self._live.lock:
            self.num_duplicates += 1
            self.duplicate_nbytes += nbytes

    @property
    def held_nbytes(self) -> int:
        """Bytes held for tensors of the step, without what is there in any case."""
        return sum(tally.held_nbytes for form, tally in self.forms.items() if is_costly(form))


def is_costly(form: str) -> bool:
    """True if memory is held for the form that would not be there otherwise."""
    return form not in _FREE


@dataclass(frozen=True, slots=True)
class ActivationReport:
    """One step, and where the controller is; as text a table.

    Attributes:
        num_steps: so far.
        codec: id of the codec of lossy tensors.
        level: its step or bound as it is now, also of the last step unless ``probe`` or ``state_dict`` moved it
            since; None if it has neither.
        forms: what became of the tensors that the last step saved.
        num_duplicates: tensors that were saved before in the step, and share its memory.
        duplicate_nbytes: of these.
        live_nbytes: held at this moment, without tensors below 4 KiB, which autograd holds as they are and nobody
            sees freed; ``held_nbytes`` has them.
        similarity: of gradients, last measured or predicted; None before. A step's is predicted when the next
            one begins, which then moves the level.
        similarity_level: the level that the similarity is of.
        is_predicted: True if the similarity comes from the closed form, not from a probe.
        factors: of the level, by part of the network; empty before ``balance``.
    """

    num_steps: int
    codec: str
    level: float | None
    forms: dict[str, Tally] = field(default_factory=dict)
    num_duplicates: int = 0
    duplicate_nbytes: int = 0
    live_nbytes: int = 0
    similarity: Similarity | None = None
    similarity_level: float | None = None
    is_predicted: bool = False
    factors: dict[str, float] = field(default_factory=dict)

    @property
    def original_nbytes(self) -> int:
        """Bytes that autograd would hold, each tensor once, without what is there in any case."""
        return sum(tally.original_nbytes for form, tally in self.forms.items() if is_costly(form))

    @property
    def held_nbytes(self) -> int:
        """Bytes that were held in their place."""
        return sum(tally.held_nbytes for form, tally in self.forms.items() if is_costly(form))

    @property
    def ratio(self) -> float:
        """Original over held bytes."""
        return self.original_nbytes / self.held_nbytes if self.held_nbytes else 1.0

    def scalars(self) -> dict[str, float]:
        """Return numbers by name, as loggers take them (``SummaryWriter.add_scalar`` of TensorBoard)."""
        found = {
            "original_nbytes": float(self.original_nbytes),
            "held_nbytes": float(self.held_nbytes),
            "ratio": self.ratio,
        }
        if self.level is not None:
            found["level"] = self.level
        if self.similarity is not None:
            found.update(self.similarity._asdict())
        if self.similarity_level is not None:
            found["score_level"] = self.similarity_level
        return {f"activations/{name}": value for name, value in found.items()}

    def to_config(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "num_steps": self.num_steps,
            "codec": self.codec,
            "level": self.level,
            "original_nbytes": self.original_nbytes,
            "held_nbytes": self.held_nbytes,
            "live_nbytes": self.live_nbytes,
            "num_duplicates": self.num_duplicates,
            "duplicate_nbytes": self.duplicate_nbytes,
            "forms": {
                form: {
                    "num_tensors": tally.num_tensors,
                    "original_nbytes": tally.original_nbytes,
                    "held_nbytes": tally.held_nbytes,
                }
                for form, tally in self.forms.items()
            },
            "similarity": None if self.similarity is None else self.similarity._asdict(),
            "similarity_level": self.similarity_level,
            "is_predicted": self.is_predicted,
            "factors": dict(self.factors),
        }

    def __str__(self) -> str:
        lines = [("saved as", "tensors", "original MiB", "held MiB", "ratio")]
        by_size = sorted(self.forms.items(), key=lambda item: -item[1].original_nbytes)
        for form, tally in by_size:
            held = tally.held_nbytes if is_costly(form) else 0
            lines.append((form, str(tally.num_tensors), *_mib(tally.original_nbytes, held)))
        lines.append(
            ("all but " + " and ".join(_FREE), "", *_mib(self.original_nbytes, self.held_nbytes))
        )
        widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
        rows = [
            "  ".join([x[0].ljust(widths[0]), *map(str.rjust, x[1:], widths[1:])]).rstrip()
            for x in lines
        ]
        return "\n".join([self._title(), *rows])

    def _title(self) -> str:
        factors = ""
        if self.factors:
            factors = f" times {min(self.factors.values()):.2f} to {max(self.factors.values()):.2f}"
        title = f"{_counted(self.num_steps, 'step')}, codec {self.codec}{_at(self.level)}{factors}"
        if self.similarity is not None:
            how = "predicted" if self.is_predicted else "measured"
            title += (
                f"; gradients {self.similarity.score:.3f} similar{_at(self.similarity_level)}, cosine "
                f"{self.similarity.cosine:.3f} ({how})"
            )
        return (
            f"{title}; the last step saved {_counted(self.num_duplicates, 'tensor')} twice "
            f"({self.duplicate_nbytes / 2**20:.2f} MiB):"
        )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _at(level: float | None) -> str:
    return "" if level is None else f" at {level:.4g}"


def _mib(original_nbytes: int, held_nbytes: int) -> tuple[str, str, str]:
    ratio = f"{original_nbytes / held_nbytes:.2f}" if held_nbytes else ""
    return f"{original_nbytes / 2**20:.2f}", f"{held_nbytes / 2**20:.2f}", ratio
