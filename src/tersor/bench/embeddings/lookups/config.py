"""The plan of the ``lookups`` suite."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import torch

from tersor.bench.embeddings.lookups.candidates import (
    DEVICE_LOOKUP_CODECS,
    LOOKUP_CODECS,
    check_encoders,
)
from tersor.bench.embeddings.lookups.inputs import Cut
from tersor.bench.peers import COPIES, peers_of
from tersor.errors import SpecError
from tersor.sites.embeddings import ClassBounds, Decay

CODE_DTYPES: Final = {"int8": torch.int8, "int16": torch.int16, "auto": None}


@dataclass(frozen=True, kw_only=True, slots=True)
class LookupsConfig:
    """What to measure.

    Attributes:
        device: ``"cpu"`` or ``"cuda"``.
        cut: how look-ups become slices.
        tight: tables with the tight bound.
        loose: tables with the loose bound. If both lists are empty, classes are determined from the
            first look-up.
        by_hand: whether all tables are base tables if both lists are empty.
        bounds: bounds of the classes.
        decay: how bounds tighten over the iterations of the dumps.
        code_dtype: dtype of the codes for encoders that only take codes: ``"int8"``, ``"int16"`` or
            ``"auto"``.
        codecs: names from ``LOOKUP_CODECS`` or ids of registered codecs.
        peers: names from ``tersor.bench.peers.peers_of(device)``.
        rounds: timed rounds per table.
        warmup: untimed rounds before those.
        first_iteration: first measured iteration; classes are still determined from the first look-up
            of the dump.
        max_tables: the most tables to measure; all if None.
        max_iterations: the most look-ups to measure per table, from the first one on; all if None.
        steps: whether to measure all tables of one step in one call too, as an exchange on a GPU
            encodes them. A single table is too little work for a GPU.
    """

    device: str = "cpu"
    cut: Cut = field(default_factory=Cut)
    tight: frozenset[int] = frozenset()
    loose: frozenset[int] = frozenset()
    by_hand: bool = False
    bounds: ClassBounds = field(default_factory=ClassBounds)
    decay: Decay = field(default_factory=Decay.off)
    code_dtype: str = "auto"
    codecs: tuple[str, ...] = LOOKUP_CODECS
    peers: tuple[str, ...] = ()
    rounds: int = 5
    warmup: int = 1
    first_iteration: int = 0
    max_tables: int | None = None
    max_iterations: int | None = None
    steps: bool = False

    def __post_init__(self) -> None:
        """Reject an empty or impossible plan and unknown encoders."""
        if self.device not in ("cpu", "cuda"):
            raise SpecError(f"device must be 'cpu' or 'cuda', not {self.device!r}")
        if self.code_dtype not in CODE_DTYPES:
            raise SpecError(
                f"codes are {', '.join(CODE_DTYPES)} for --code-dtype, not {self.code_dtype!r}"
            )
        if self.rounds < 1 or not (self.codecs or self.peers):
            raise SpecError("name at least one encoder, and one round")
        check_encoders(self.codecs)

    @classmethod
    def for_device(cls, device: str, **asked: Any) -> LookupsConfig:
        """Return the full plan for a device, with ``asked`` overriding its defaults."""
        codecs = DEVICE_LOOKUP_CODECS if device == "cuda" else LOOKUP_CODECS
        # plain copies and peers on codes alone say nothing about an exchange
        peers = tuple(
            name for name in peers_of(device) if not name.endswith("-codes") and name not in COPIES
        )
        usual: dict[str, Any] = {"codecs": codecs, "peers": peers, "steps": device == "cuda"}
        return cls(device=device, **(usual | asked))

    @property
    def setting(self) -> str:
        """The non-default batch, bounds, decay, classes and first iteration in words."""
        words = []
        if self.cut.batch is not None:
            words.append(f"batches of {self.cut.batch}")
        if self.bounds != ClassBounds():
            words.append(
                "bounds {tight:.12g} {base:.12g} {loose:.12g}".format(**asdict(self.bounds))
            )
        if self.decay != Decay.off():
            shape, start = self.decay.shape, self.decay.magnitude
            words.append(f"{shape} decay from {start:.12g} to iteration {self.decay.end}")
        if self.by_hand and not (self.tight or self.loose):
            words.append("all tables base")
        for name, tables in (("tight", self.tight), ("loose", self.loose)):
            if tables:
                words.append(f"{name} tables {' '.join(map(str, sorted(tables)))}")
        if self.first_iteration:
            words.append(f"from iteration {self.first_iteration}")
        return ", ".join(words)

    def smoke(self) -> LookupsConfig:
        """Return the plan reduced to one round on one look-up of three tables."""
        return replace(self, rounds=1, max_tables=3, max_iterations=1)
