"""Accounting of saved tensors: how they are stored, and how many bytes that takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any, Final

from tersor.policy import Similarity

PARAMETERS: Final = "parameters"
HELD_BY_OTHERS: Final = "held by others"
UNSEEN: Final = "exact: unknown function"
_FREE: Final = (PARAMETERS, HELD_BY_OTHERS)
"""Forms whose memory exists anyway, so they do not count as held."""

_MOST_LISTED: Final = 8
"""Parts whose factors are listed one by one in the text of a report."""


@dataclass(slots=True)
class Tally:
    """The tensors of one form.

    Attributes:
        num_tensors: number of tensors.
        original_nbytes: bytes that autograd would hold for them.
        held_nbytes: bytes held in their place.
    """

    num_tensors: int = 0
    original_nbytes: int = 0
    held_nbytes: int = 0

    @property
    def ratio(self) -> float:
        """Original over held bytes; infinite if nothing is held."""
        return self.original_nbytes / self.held_nbytes if self.held_nbytes else float("inf")


class Live:
    """Counter of the bytes held at this moment, shared by threads and steps.

    Attributes:
        lock: protects ``nbytes`` and the ledgers that count in it.
        nbytes: bytes held.
    """

    def __init__(self) -> None:
        """Start at zero."""
        self.lock = RLock()
        self.nbytes = 0


class Ledger:
    """Counts what one step saved, by form.

    Attributes:
        forms: tally by the reason of an entry, a row of the report.
        num_duplicates: tensors that were saved before in the step.
        duplicate_nbytes: size of these.
        num_coded_values: values that were encoded.
        coded_nbytes: size of these before encoding.
    """

    def __init__(self, live: Live) -> None:
        """Start an empty ledger that also counts in ``live``."""
        self._live = live
        self.forms: dict[str, Tally] = {}
        self.num_duplicates = 0
        self.duplicate_nbytes = 0
        self.num_coded_values = self.coded_nbytes = 0

    def hold(self, entry: Any, nbytes: int) -> None:
        """Count an entry under its reason, and its memory as live."""
        with self._live.lock:
            self.count(entry.reason, entry.original_nbytes, nbytes)
            self._live.nbytes += nbytes if is_costly(entry.reason) else 0

    def count(self, reason: str, original_nbytes: int, held_nbytes: int) -> None:
        """Count a tensor, but not as live memory; alone for tensors whose release is not observed."""
        tally = self.forms.get(reason)
        if tally is None:
            tally = self.forms[reason] = Tally()
        tally.num_tensors += 1
        tally.original_nbytes += original_nbytes
        tally.held_nbytes += held_nbytes

    def exchange(self, entry: Any, nbytes: int, reason: str, new_nbytes: int) -> None:
        """Undo ``hold`` of ``nbytes`` for an entry that changes its form, and count it under its new reason."""
        with self._live.lock:
            self._drop(entry.reason, entry.original_nbytes, nbytes)
            self.count(reason, entry.original_nbytes, new_nbytes)
            self._live.nbytes += new_nbytes if is_costly(reason) else 0
            self._live.nbytes -= nbytes if is_costly(entry.reason) else 0

    def move(self, reason: str, to: str, nbytes: int) -> None:
        """Count a freed tensor that was saved unchanged under another reason."""
        with self._live.lock:
            self._drop(reason, nbytes, nbytes)
            self.count(to, nbytes, nbytes)

    def _drop(self, reason: str, original_nbytes: int, held_nbytes: int) -> None:
        tally = self.forms[reason]
        tally.num_tensors -= 1
        tally.original_nbytes -= original_nbytes
        tally.held_nbytes -= held_nbytes
        if not tally.num_tensors:
            del self.forms[reason]

    def drop_original_bytes(self, entry: Any) -> None:
        """Remove an entry's original bytes, because another entry counts them."""
        with self._live.lock:
            self.forms[entry.reason].original_nbytes -= entry.original_nbytes
            entry.original_nbytes = 0

    def subtract_live(self, reason: str, nbytes: int) -> None:
        """Subtract the memory of an entry from the live bytes; the step's tallies keep it."""
        with self._live.lock:
            self._live.nbytes -= nbytes if is_costly(reason) else 0

    def duplicate(self, nbytes: int) -> None:
        """Count a tensor that was saved before in the step."""
        with self._live.lock:
            self.num_duplicates += 1
            self.duplicate_nbytes += nbytes

    def tallies(self) -> dict[str, Tally]:
        """Return copies of the tallies by form, also while another thread counts.

        Of a tensor that is counted at this moment, the number may be included and its bytes not.
        """
        with self._live.lock:
            # ``count`` may add a form without the lock; ``copy`` of a dict runs no Python code, so it sees all or nothing of it
            return {form: replace(tally) for form, tally in self.forms.copy().items()}

    @property
    def original_nbytes(self) -> int:
        """Bytes that autograd would hold for the tensors of the step, without memory that exists anyway."""
        return sum(tally.original_nbytes for tally in _costly(self.tallies()))

    @property
    def held_nbytes(self) -> int:
        """Bytes held for the tensors of the step, without memory that exists anyway."""
        return sum(tally.held_nbytes for tally in _costly(self.tallies()))


def _costly(forms: Mapping[str, Tally]) -> list[Tally]:
    """Return the tallies of forms that hold memory that would not exist otherwise."""
    return [tally for form, tally in forms.items() if is_costly(form)]


def is_costly(form: str) -> bool:
    """True if the form holds memory that would not exist otherwise."""
    return form not in _FREE


@dataclass(frozen=True, slots=True)
class ActivationReport:
    """What the last step saved, and the state of the controller; its text form is a table.

    Attributes:
        num_steps: number of steps so far.
        codec: id of the codec of lossy tensors.
        level: current step or steered bound; None if there is neither. The last step used it too, unless ``probe``
            or ``state_dict`` has moved it since.
        forms: tallies of the tensors that the last step saved, by form.
        num_duplicates: tensors that were saved before in the step, and share memory with the first.
        duplicate_nbytes: size of these.
        live_nbytes: bytes held at this moment. Tensors below 4 KiB and casts of weights are not included, because autograd
            holds them unchanged and their release is not observed; ``held_nbytes`` includes them.
        similarity: last measured or predicted similarity of gradients; None before the first. The prediction for a
            step is made when the next one begins, which then moves the level.
        similarity_level: the level that ``similarity`` was found at.
        is_predicted: True if ``similarity`` is predicted by the closed form, False if a probe measured it.
        factors: factors on the level, by part of the network; empty before ``balance``.
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
        """Bytes that autograd would hold, counting each tensor once, without memory that exists anyway."""
        return sum(tally.original_nbytes for tally in _costly(self.forms))

    @property
    def held_nbytes(self) -> int:
        """Bytes held in their place."""
        return sum(tally.held_nbytes for tally in _costly(self.forms))

    @property
    def ratio(self) -> float:
        """Original over held bytes; 1 if nothing is held."""
        return self.original_nbytes / self.held_nbytes if self.held_nbytes else 1.0

    def scalars(self) -> dict[str, float]:
        """Return numbers by name for a logger, such as ``SummaryWriter.add_scalar`` of TensorBoard."""
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

    def __repr__(self) -> str:
        """Return the main numbers in one line; ``str`` is the table."""
        return (
            f"{type(self).__name__}({_passes(self.num_steps)}, codec {self.codec}{_at(self.level)}, "
            f"{self.ratio:.2f} times smaller)"
        )

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
            factors = f" times {_listed(self.factors)}"
        title = f"{_passes(self.num_steps)}, codec {self.codec}{_at(self.level)}{factors}"
        if self.similarity is not None:
            how = "predicted" if self.is_predicted else "measured"
            title += (
                f"; gradients {self.similarity.score:.3f} similar{_at(self.similarity_level)}, cosine "
                f"{self.similarity.cosine:.3f} ({how})"
            )
        return (
            f"{title}; the last one saved {_counted(self.num_duplicates, 'tensor')} twice "
            f"({self.duplicate_nbytes / 2**20:.2f} MiB):"
        )


def _passes(number: int) -> str:
    return "1 forward pass" if number == 1 else f"{number} forward passes"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _at(level: float | None) -> str:
    return "" if level is None else f" at {level:.4g}"


def _listed(factors: Mapping[str, float]) -> str:
    if len(factors) > _MOST_LISTED:
        return f"{min(factors.values()):.2f} to {max(factors.values()):.2f}"
    return ", ".join(f"{factor:.2f} ({part})" for part, factor in factors.items())


def _mib(original_nbytes: int, held_nbytes: int) -> tuple[str, str, str]:
    ratio = f"{original_nbytes / held_nbytes:.2f}" if held_nbytes else ""
    return f"{original_nbytes / 2**20:.2f}", f"{held_nbytes / 2**20:.2f}", ratio
