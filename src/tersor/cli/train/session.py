"""A training from the command line: its ranks, its folder, resuming, and what is shown meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tersor.cli.options import check_device
from tersor.cli.screen import Screen
from tersor.errors import SpecError

if TYPE_CHECKING:
    import torch

    from tersor.workloads.ranks import Ranks
    from tersor.workloads.training.loop import Schedule
    from tersor.workloads.training.run import TrainingRun

RunT = TypeVar("RunT", bound="TrainingRun[Any, Any]")


@dataclass(frozen=True, slots=True)
class Session:
    """What the options that every training has say about a run.

    Attributes:
        screen: what is said goes there.
        command: as it was typed.
        device: that trains.
        folder: of the log and the checkpoints, if any.
        resume: go on from the last checkpoint there.
        tensorboard: write its files, too.
    """

    screen: Screen
    command: str
    device: str
    folder: Path | None
    resume: bool
    tensorboard: bool

    def schedule(
        self, log_every: int, eval_every: int, eval_samples: int | None, checkpoint_every: int
    ) -> Schedule:
        """Return when what happens; refuse what needs a folder where there is none."""
        from tersor.workloads.training.loop import Schedule

        if (self.resume or checkpoint_every or self.tensorboard) and self.folder is None:
            raise SpecError("--resume, --checkpoint-every and --tensorboard need --run-dir DIR")
        return Schedule(
            log_every=log_every, eval_every=eval_every, eval_samples=eval_samples,
            checkpoint_every=checkpoint_every,
            checkpoints=self.checkpoints if checkpoint_every else None,
        )  # fmt: skip

    @property
    def checkpoints(self) -> Path | None:
        """Where checkpoints are, if anywhere."""
        return None if self.folder is None else self.folder / "checkpoints"

    def goes_on(self) -> bool:
        """True if there is a checkpoint to go on from."""
        from tersor.workloads.training.checkpoint import complete_checkpoints

        folder = self.checkpoints if self.resume else None
        return folder is not None and bool(complete_checkpoints(folder))


def run_training(
    session: Session,
    schedule: Schedule,
    make_run: Callable[[torch.device], RunT],
    show: Callable[[RunT, Any, dict[str, Any]], None],
    *,
    check: Callable[[], None] | None = None,
    before_step: Callable[[RunT, Any], None] | None = None,
) -> int:
    """Train on the ranks that torchrun started, or alone; return the exit code.

    Args:
        session: the options that every training has.
        schedule: when what happens besides training.
        make_run: makes the run of a rank, on a device.
        show: shows a run's metrics and totals at the end; called on rank 0.
        check: refuses what must not be written over.
        before_step: is given the run and the batch of each step.
    """
    import torch

    from tersor.workloads.ranks import Ranks, joined
    from tersor.workloads.training.log import RunLog
    from tersor.workloads.training.loop import train

    screen = session.screen
    check_device(session.device)
    device = torch.device(session.device)
    with ExitStack() as stack:
        stack.enter_context(_saying_what_is_kept(session))
        stack.enter_context(joined(device))
        _enter_folder(stack, Ranks.current(), session, schedule, check)
        stack.enter_context(screen.compiling())
        run = make_run(device)
        stack.callback(run.close)
        if session.resume:
            _resume(session, run)
        is_first = run.ranks.rank == 0
        log = RunLog(
            session.folder if is_first else None,
            tensorboard=session.tensorboard,
            show=partial(_show_line, screen, run.config.steps) if is_first else None,
        )
        stack.enter_context(log)
        # a log that ends at the last step is whole: there is nothing to add
        if is_first and not run.step_number == run.config.steps == log.ended_at:
            log.write("run", run.step_number, _facts(session, run))
        progress = stack.enter_context(screen.steps("training"))
        hook = None if before_step is None else (lambda batch: before_step(run, batch))
        metrics = train(run, schedule, log, progress, hook)
        totals = run.totals()
        if is_first:
            show(run, metrics, totals)
    return 0


def _show_line(screen: Screen, steps: int, line: dict[str, Any]) -> None:
    """Show people the losses and evaluations of a log."""
    if screen.as_json or line["kind"] not in ("train", "eval"):
        return
    values = dict(line)
    kind, step, seconds = values.pop("kind"), values.pop("step"), values.pop("step_s", None)
    words = [
        f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    ]
    if kind == "train":
        words.append(f"{1e3 * seconds:.1f} ms per step")
    screen.say(f"step {step} of {steps}: {', '.join(words)}")


def _facts(session: Session, run: TrainingRun[Any, Any]) -> dict[str, Any]:
    """Return what it takes to repeat a run."""
    from tersor.bench.core.machine import origin

    return {
        "command": session.command, "run_id": run.run_id, "source": run.data_name,
        "config": run.config.to_config(), "ranks": run.ranks.world_size, **origin(run.device),
    }  # fmt: skip


def _enter_folder(
    stack: ExitStack,
    ranks: Ranks,
    session: Session,
    schedule: Schedule,
    check: Callable[[], None] | None,
) -> None:
    """Keep others out of the run's folder, and refuse what must not be written over."""
    from tersor.workloads.training.checkpoint import remove_leavings
    from tersor.workloads.training.run_folder import held

    def refuse() -> None:
        if check is not None:
            check()
        _refuse_wrong_folder(session)

    # together: none sees then what another has written already
    ranks.together(refuse)
    if session.folder is None or session.checkpoints is None:
        return
    writes_checkpoints = schedule.checkpoints is not None or session.resume
    stack.enter_context(held(session.folder, ranks, shared=writes_checkpoints))
    # again: the run that this one waited for may have written a log and ended
    ranks.together(lambda: _refuse_wrong_folder(session))
    checkpoints = session.checkpoints
    ranks.together(lambda: remove_leavings(checkpoints) if ranks.rank == 0 else None)


def _refuse_wrong_folder(session: Session) -> None:
    """Raise ``SpecError`` for a folder that holds a run, unless it goes on, and for none to go on in.

    A run goes on in a folder without a checkpoint, too, and in a new one beside others, so that one
    command starts and restarts it, also after it was killed before it made its folder.
    """
    from tersor.workloads.training.checkpoint import complete_checkpoints

    folder = session.folder
    if folder is None:
        return
    if session.resume and not folder.absolute().parent.is_dir():
        raise SpecError(
            f"there is no folder {folder.parent} to resume a run in; check its name, or start the run "
            "without --resume"
        )
    is_used = (folder / "log.jsonl").exists() or complete_checkpoints(folder / "checkpoints")
    if is_used and not session.resume:
        raise SpecError(f"{folder} holds a run; go on with --resume, or name another folder")


@contextmanager
def _saying_what_is_kept(session: Session) -> Iterator[None]:
    """Tell who interrupts a run whether it can be resumed."""
    from tersor.workloads.training.checkpoint import last_step

    try:
        yield
    except KeyboardInterrupt as error:
        folder = session.folder
        # not if it is gone again, as nothing was written to it
        if folder is not None and folder.exists():
            step = last_step(folder / "checkpoints")
            kept = f"the checkpoint of step {step} is in {folder}; go on with --resume"
            none = f"{folder} has no checkpoint yet; --resume starts anew there"
            error.args = (none if step is None else kept,)
        raise


def _resume(session: Session, run: TrainingRun[Any, Any]) -> None:
    """Go on from the last checkpoint, if there is one, and say where."""
    from tersor.workloads.training.checkpoint import resume

    if session.checkpoints is None:
        return
    step = resume(run, session.checkpoints)
    if run.ranks.rank:
        return
    left = "" if step < run.config.steps else "; nothing is left to train"
    say = session.screen.say
    say(f"resumed at step {step}{left}" if step else "no checkpoint yet; starting anew")
    uncounted = run.uncounted()
    if uncounted is not None:
        say(uncounted)
