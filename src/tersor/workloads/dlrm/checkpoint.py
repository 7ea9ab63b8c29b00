"""Checkpoints of a run: a folder per step, a file per rank, complete or not there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist

from tersor.api import load, save
from tersor.container import atomic_write
from tersor.errors import CorruptDataError, SpecError
from tersor.sites.embeddings import ExchangeStats
from tersor.workloads.dlrm.run import DlrmRun

_COMPLETE: Final = "complete.json"
_KEPT: Final = 2
"""Complete checkpoints that stay: the last, and the one before it."""


def _barrier(run: DlrmRun) -> None:
    if run.ranks.world_size > 1:
        dist.barrier()


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints in a folder, oldest first."""
    return sorted(path.parent for path in folder.glob(f"step-*/{_COMPLETE}"))


def last_step(folder: Path) -> int | None:
    """Return the step of the last complete checkpoint in a folder; None if there is none."""
    found = complete_checkpoints(folder)
    return int(found[-1].name.removeprefix("step-")) if found else None


def save_checkpoint(run: DlrmRun, folder: Path) -> Path:
    """Write the state and statistics of all ranks, exactly; a collective call.

    Returns the new checkpoint.
    """
    path = folder / f"step-{run.step_number:09d}"
    path.mkdir(parents=True, exist_ok=True)
    save(path / f"rank-{run.ranks.rank}.tsr", run.state(), codec="raw")
    with atomic_write(_stats_file(run, path)) as file:
        file.write(json.dumps(run.exchange.stats.to_dict()).encode())
    _barrier(run)
    if run.ranks.rank == 0:
        facts = {
            "step": run.step_number,
            "world_size": run.ranks.world_size,
            "config": run.config.to_config(),
            "source": run.source.name,
        }
        with atomic_write(path / _COMPLETE) as file:
            file.write(json.dumps(facts, sort_keys=True).encode())
        for old in complete_checkpoints(folder)[:-_KEPT]:
            # first the mark, so that no one takes a half-deleted one for complete
            (old / _COMPLETE).unlink()
            shutil.rmtree(old)
    _barrier(run)
    return path


def resume(run: DlrmRun, folder: Path) -> int:
    """Continue from the last complete checkpoint; return its step, 0 if there is none.

    Statistics go on from the checkpoint too. One written before checkpoints held them leaves them
    at zero, so that ``num_exchanges`` stays behind ``step_number``.

    Raises:
        SpecError: the checkpoint is of another run, or past this run's last step.
        CorruptDataError: a file is damaged.
    """
    found = complete_checkpoints(folder)
    if not found:
        return 0
    path = found[-1]
    try:
        facts = json.loads((path / _COMPLETE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptDataError(f"{path / _COMPLETE} cannot be read; remove {path}") from error
    if facts.get("world_size") != run.ranks.world_size:
        raise SpecError(
            f"{path} was written by {facts.get('world_size')} ranks, this run has "
            f"{run.ranks.world_size}; start as many, or another run"
        )
    # before other options: the end of a decay follows from --steps unless it is given
    if facts.get("step", 0) > run.config.steps:
        raise SpecError(
            f"{path} is at step {facts['step']}, past --steps {run.config.steps}; give --steps "
            f"{facts['step']} or more, or another --run-dir"
        )
    _refuse_another_run(run, path, facts)
    stats = _saved_stats(_stats_file(run, path))
    run.load_state(load(path / f"rank-{run.ranks.rank}.tsr"))
    run.exchange.stats = stats
    return run.step_number


def _stats_file(run: DlrmRun, path: Path) -> Path:
    # not among the tensors of the state: that is the same for equal runs, and times are not
    return path / f"rank-{run.ranks.rank}.json"


def _saved_stats(file: Path) -> ExchangeStats:
    if not file.exists():
        return ExchangeStats()
    try:
        return ExchangeStats.from_dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise CorruptDataError(
            f"{file} cannot be read; remove it, and the run goes on without what it has counted"
        ) from error


def _refuse_another_run(run: DlrmRun, path: Path, facts: dict[str, Any]) -> None:
    # a run may go on for longer than it was first told
    ours, theirs = _json(run.config.to_config()), dict(facts.get("config", {}))
    differing = [name for name in ours if name != "steps" and ours[name] != theirs.get(name)]
    if differing == ["bounds"]:
        end = theirs.get("bounds", {}).get("decay", {}).get("end")
        decay = {**ours["bounds"]["decay"], "end": end}
        if {**ours["bounds"], "decay": decay} == theirs.get("bounds"):
            raise SpecError(
                f"{path} is of a run with another decay: its bounds become final at iteration {end}, "
                f"and by default that follows from --steps; go on with --decay-end {end}"
            )
    if differing or facts.get("source") != run.source.name:
        what = ", ".join(differing) or "data"
        raise SpecError(
            f"{path} is of a run with another {what}; give the same options, or another folder"
        )


def _json(value: Any) -> Any:
    """Return a value as it comes back from JSON."""
    return json.loads(json.dumps(value))
