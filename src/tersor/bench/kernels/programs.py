"""The ``programs`` suite: other projects' benchmark programs on the inputs of the ``kernels`` suite.

Its rows use the suite name ``kernels``, so that they appear next to ours in one file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from tersor.bench.core import machine
from tersor.bench.core.inputs import SMOKE_NBYTES
from tersor.bench.core.outcome import SuiteOutcome, ignore
from tersor.bench.core.rows import ResultRow, row_identity
from tersor.bench.core.subject import Subject
from tersor.bench.kernels.config import Group, KernelsConfig
from tersor.bench.peers.executables import (
    Executable,
    executables_of,
    find_executables,
    is_on_path,
)
from tersor.errors import BackendUnavailableError, SpecError
from tersor.types import Bound


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramsConfig:
    """What to measure.

    Attributes:
        device: ``"cpu"`` or ``"cuda"``; it determines the programs and inputs.
        programs: names from ``tersor.bench.peers.executables.EXECUTABLES``; empty for all.
        inputs: names of inputs; empty for all of the device.
        bounds: relative bounds; empty for each input's default.
        sizes: sizes of the inputs in bytes; empty for the device's default.
        rounds: runs of each program.
        timeout_s: time limit of one run in seconds.
    """

    device: str = "cpu"
    programs: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    sizes: tuple[int, ...] = ()
    rounds: int = 3
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        """Reject an impossible plan."""
        if self.device not in ("cpu", "cuda"):
            raise SpecError(f"device must be cpu or cuda, not {self.device!r}")
        if self.rounds < 1 or not self.timeout_s > 0:
            raise SpecError("a program runs at least once and for longer than 0 s")

    def smoke(self) -> ProgramsConfig:
        """Return the plan reduced to 1 MiB inputs and one round."""
        return replace(self, sizes=(SMOKE_NBYTES,), rounds=1)

    def names(self) -> tuple[str, ...]:
        """Return the programs to run.

        Raises:
            SpecError: a requested program is not one of this device.
        """
        here = executables_of(self.device)
        for name in self.programs:
            if name not in here:
                raise SpecError(f"programs on {self.device} are {', '.join(here)}, not {name!r}")
        return self.programs or here

    def groups(self) -> list[Group]:
        """Return the groups of the ``kernels`` suite that have a bound."""
        names = ("inputs", "bounds", "sizes")
        asked = {name: getattr(self, name) for name in names if getattr(self, name)}
        groups = KernelsConfig.for_device(self.device, **asked).groups()
        return [group for group in groups if group.relative_bound is not None]


@dataclass(slots=True)
class ProgramsOutcome(SuiteOutcome):
    """The result of running programs.

    Attributes:
        num_on_path: requested programs that are on PATH, whether they work or not.
        num_known: rows that existed already and were not measured again.
    """

    num_on_path: int = 0
    num_known: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there are no rows, old or new, because every program is missing or failed."""
        return not self.rows and not self.num_known


def run_programs(
    config: ProgramsConfig,
    *,
    done: frozenset[str] = frozenset(),
    on_row: Callable[[ResultRow], None] = ignore,
    on_note: Callable[[str], None] = ignore,
    on_group: Callable[[int, int, str], None] = ignore,
) -> ProgramsOutcome:
    """Run every program that is on PATH on every input, and note the combinations that fail.

    Args:
        config: the plan.
        done: keys of rows that exist already and are not measured again.
        on_row: called with each finished row.
        on_note: called with one sentence for each omission.
        on_group: called with (finished groups, all groups, label) before each group starts.
    """
    num_on_path = sum(map(is_on_path, config.names()))
    outcome = ProgramsOutcome(done, on_row, on_note, num_on_path=num_on_path)
    programs, absent = find_executables(config.names())
    for sentence in absent:
        outcome.note(sentence)
    groups = config.groups() if programs else []
    device = torch.device(config.device)
    for index, group in enumerate(groups):
        on_group(index, len(groups), group.label)
        subject = Subject.of(group.make(device), group.relative_bound)
        for program in programs:
            identity = _identity(program, subject, config)
            if outcome.is_done(identity):
                outcome.num_known += 1
                continue
            try:
                measured = program.measure(
                    subject, rounds=config.rounds, timeout_s=config.timeout_s
                )
            except BackendUnavailableError as error:
                outcome.note(f"left out: {program.name} on {group.label}: {error}")
                continue
            row = ResultRow(
                **identity, **asdict(measured), original_nbytes=subject.nbytes, peer=True,
                entropy_bits=subject.entropy_bits, distinct_rows=subject.distinct_rows,
                note=program.note, versions=machine.versions(), machine=machine.machine(device),
            )  # fmt: skip
            outcome.add(row)
    on_group(len(groups), len(groups), "done")
    return outcome


def _identity(program: Executable, subject: Subject, config: ProgramsConfig) -> dict[str, Any]:
    if subject.relative_bound is None:
        raise SpecError("programs are measured on inputs with a bound")
    bound = Bound.relative(subject.relative_bound).to_config()
    return row_identity(
        suite="kernels", codec=program.name, version=program.version,
        spec={"bound": bound, **program.options()}, input=subject.name, device=config.device,
        num_values=sum(x.numel() for x in subject.slices),
    )  # fmt: skip
