"""Checkpoints of a run: a folder per step with two files per rank, valid only when complete.

``complete.json`` is written last and marks a checkpoint as complete. Every save has a random id, which is
stored there and in the files of each rank, so files of another save or run are detected.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
import torch
import xxhash

from tersor.api import load, save
from tersor.atomic import atomic_write
from tersor.errors import CorruptDataError, SpecError
from tersor.workloads.training.run import TrainingRun

_Run: TypeAlias = TrainingRun[Any, Any]
_NAME: Final = re.compile(r"step-(\d{9,})")
_COMPLETE: Final = "complete.json"
_SAVE_ID: Final = "save_id"
_NUM_RETAINED: Final = 2
"""Number of most recent complete checkpoints to retain."""


def complete_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints in a folder, oldest first."""
    return [path for _, path in _numbered(folder) if (path / _COMPLETE).exists()]


def _numbered(folder: Path) -> list[tuple[int, Path]]:
    """Return step and path of all checkpoints in a folder, complete or not, oldest first.

    Folders with other names are ignored.
    """
    found = ((_NAME.fullmatch(path.name), path) for path in folder.glob("step-*"))
    return sorted((int(match[1]), path) for match, path in found if match)


def last_step(folder: Path) -> int | None:
    """Return the step of the last complete checkpoint in a folder; None if there is none."""
    steps = [step for step, path in _numbered(folder) if (path / _COMPLETE).exists()]
    return steps[-1] if steps else None


def remove_leftovers(folder: Path) -> None:
    """Remove incomplete checkpoints and temporary files of killed runs; no other process may be writing."""
    for _, path in _numbered(folder):
        if not (path / _COMPLETE).exists():
            shutil.rmtree(path)
            continue
        for unfinished in path.glob(".tersor-*.tmp"):
            unfinished.unlink()


def save_checkpoint(run: _Run, folder: Path) -> Path:
    """Write the state, losslessly, and the counters of all ranks; a collective call.

    Returns:
        The path of the new checkpoint.
    """
    path = folder / f"step-{run.step_number:09d}"
    save_id = str(run.ranks.gathered(secrets.token_hex(8))[0])
    run.ranks.run_on_all(lambda: _save_rank(run, path, save_id))
    run.ranks.run_on_all(lambda: _mark_complete(run, path, save_id))
    return path


def _save_rank(run: _Run, path: Path, save_id: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    mark = torch.tensor(list(bytes.fromhex(save_id)), dtype=torch.uint8)
    save(path / f"rank-{run.ranks.rank}.tsr", {**run.state(), _SAVE_ID: mark}, codec="raw")
    counted = {"run_id": run.run_id, _SAVE_ID: save_id, "stats": run.counters()}
    with atomic_write(path / f"rank-{run.ranks.rank}.json") as file:
        file.write(json.dumps(counted).encode())


def _mark_complete(run: _Run, path: Path, save_id: str) -> None:
    """On rank 0, mark a checkpoint as complete and remove surplus older ones."""
    if run.ranks.rank:
        return
    facts = {
        "step": run.step_number,
        "world_size": run.ranks.world_size,
        "config": run.config.to_config(),
        "source": run.data_name,
        "run_id": run.run_id,
        _SAVE_ID: save_id,
    }
    with atomic_write(path / _COMPLETE) as file:
        file.write(json.dumps(facts, sort_keys=True).encode())
    for old in complete_checkpoints(path.parent)[:-_NUM_RETAINED]:
        # the mark first, so that a partly deleted checkpoint never counts as complete
        (old / _COMPLETE).unlink()
        shutil.rmtree(old)


def resume(run: _Run, folder: Path) -> int:
    """Continue from the last complete checkpoint; return its step, 0 if there is none.

    A collective call: all ranks continue from the same checkpoint, or none does. Counters are restored
    too, or stay at zero if an old checkpoint has none.

    Raises:
        SpecError: the checkpoint is from a different run or past this run's last step, or ranks see
            different checkpoints.
        CorruptDataError: a file is damaged, or belongs to another save.
    """
    seen, path, facts = run.ranks.run_on_all(lambda: _last(folder))
    _refuse_disagreement(folder, run.ranks.gathered(seen))
    if path is None:
        return 0
    run.ranks.run_on_all(lambda: _load_rank(run, path, facts))
    return run.step_number


def _last(folder: Path) -> tuple[str, Path | None, dict[str, Any]]:
    """Return the last complete checkpoint: a description, its path, and the facts in its mark."""
    found = complete_checkpoints(folder)
    if not found:
        return "none", None, {}
    path = found[-1]
    try:
        data = (path / _COMPLETE).read_bytes()
        facts = json.loads(data)
        needed = [facts[name] for name in ("step", "world_size", "config")]
        msgspec.convert(needed, tuple[int, int, dict[str, Any]])
    except (OSError, LookupError, TypeError, ValueError, msgspec.ValidationError) as error:
        raise CorruptDataError(f"{path / _COMPLETE} cannot be read; remove {path}") from error
    run_id, digest = facts.get("run_id", "without an id"), xxhash.xxh3_64_hexdigest(data)
    return f"step {facts['step']} of run {run_id}, complete.json {digest}", path, facts


def _refuse_disagreement(folder: Path, every: Sequence[str]) -> None:
    if len(set(every)) == 1:
        return
    views = []
    for one in dict.fromkeys(every):
        ranks = [str(rank) for rank, other in enumerate(every) if other == one]
        what = f"rank {ranks[0]} sees" if len(ranks) == 1 else f"ranks {', '.join(ranks)} see"
        views.append(f"{what} {one}")
    raise SpecError(
        f"ranks do not see the same checkpoint in {folder} ({'; '.join(views)}); name one folder on a "
        "disk that all ranks share"
    )


def _load_rank(run: _Run, path: Path, facts: dict[str, Any]) -> None:
    """Check that the run can continue from a checkpoint, and load the files of this rank."""
    if facts["world_size"] != run.ranks.world_size:
        raise SpecError(
            f"{path} was written by {facts['world_size']} rank{'s' * (facts['world_size'] != 1)}, this run has "
            f"{run.ranks.world_size}; start as many, or another run"
        )
    # checked before other options, because a default end of a decay follows from --steps
    if facts["step"] > run.config.steps:
        raise SpecError(
            f"{path} is at step {facts['step']}, past --steps {run.config.steps}; give --steps "
            f"{facts['step']} or more, or another --run-dir"
        )
    difference = run.config.difference(facts["config"])
    if difference is None and facts.get("source") != run.data_name:
        difference = "another data; give the same options, or another folder"
    if difference is not None:
        raise SpecError(f"{path} is of a run with {difference}")
    save_id = facts.get(_SAVE_ID)
    state = _saved_state(path / f"rank-{run.ranks.rank}.tsr", save_id)
    _load_counters(run, path / f"rank-{run.ranks.rank}.json", save_id)
    run.load_state(state)
    run.run_id = str(facts.get("run_id", run.run_id))


def _saved_state(file: Path, save_id: str | None) -> dict[str, torch.Tensor]:
    """Return the state of a rank; ``save_id`` is None for old checkpoints without save ids."""
    try:
        state = load(file)
    except OSError as error:
        raise CorruptDataError(
            f"{file} cannot be read ({error.strerror}); remove {file.parent}, and the run goes on from "
            "an earlier checkpoint"
        ) from error
    mark = state.pop(_SAVE_ID, None)
    _check_save_id(file, save_id, None if mark is None else bytes(mark.tolist()).hex())
    return state


def _load_counters(run: _Run, file: Path, save_id: str | None) -> None:
    """Restore the counters of a rank; they start from zero if there is no file."""
    if not file.exists():
        run.load_counters(None)
        return
    try:
        counted = json.loads(file.read_text(encoding="utf-8"))
        # the first checkpoints with statistics held nothing else
        run.load_counters(counted.get("stats", counted))
    except (OSError, AttributeError, ValueError) as error:
        raise CorruptDataError(
            f"{file} cannot be read; remove it, and the run goes on without what it has counted"
        ) from error
    _check_save_id(file, save_id, counted.get(_SAVE_ID))


def _check_save_id(file: Path, wanted: str | None, found: str | None) -> None:
    if found != wanted:
        raise CorruptDataError(
            f"{file} is of another save than the {_COMPLETE} next to it; remove {file.parent}, and the "
            "run goes on from an earlier checkpoint"
        )
