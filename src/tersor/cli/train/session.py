"""Execution of a training from the command line: ranks, run folder, resuming and output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tersor.cli.options import check_device
from tersor.cli.screen import Screen
from tersor.cli.train.activation_options import probe_words
from tersor.cli.wording import counted
from tersor.errors import SpecError

if TYPE_CHECKING:
    import torch

    from tersor.workloads.ranks import Ranks
    from tersor.workloads.training.loop import Schedule
    from tersor.workloads.training.run import TrainingRun

RunT = TypeVar("RunT", bound="TrainingRun[Any, Any]")


@dataclass(frozen=True, slots=True)
class Session:
    """The values of the options common to all trainings.

    Attributes:
        screen: output of the command.
        command: the command line.
        device: to train on.
        folder: of the log and the checkpoints, if any.
        resume: continue from the last checkpoint in ``folder``.
        tensorboard: also write TensorBoard files.
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
        """Return the schedule; raise ``SpecError`` for options that need a folder if there is none."""
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
        """Folder of the checkpoints, if any."""
        return None if self.folder is None else self.folder / "checkpoints"

    def has_checkpoint_to_resume(self) -> bool:
        """True if there is a checkpoint to resume from."""
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
        session: the common options.
        schedule: intervals of logging, evaluation and checkpoints.
        make_run: creates the run of a rank on a device.
        show: shows the final metrics and totals of a run; called on rank 0.
        check: raises if existing files would be overwritten.
        before_step: called with the run and the batch before each step.
    """
    import torch

    from tersor.workloads.ranks import Ranks, joined
    from tersor.workloads.training.log import RunLog
    from tersor.workloads.training.loop import train

    screen = session.screen
    check_device(session.device)
    device = torch.device(session.device)
    with ExitStack() as stack:
        stack.enter_context(_interrupts_say_how_to_resume(session))
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
        # a log that ends at the last step is complete, so nothing is added
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
    """Print a log line of kind ``train``, ``eval``, ``balance`` or ``probe``, unless the result is JSON."""
    if screen.as_json or line["kind"] not in ("train", "eval", "balance", "probe"):
        return
    if line["kind"] == "probe":
        screen.say(f"step {line['step']} of {steps}: {probe_words(line)}")
        return
    if line["kind"] == "balance":
        parts = counted(line["num_parts"], "part")
        factors = f"{line['least_factor']:.4g} to {line['largest_factor']:.4g}"
        screen.say(
            f"step {line['step']} of {steps}: balanced {parts}, factors {factors}, score {line['score']:.4f}"
        )
        return
    values = dict(line)
    kind, step, seconds = values.pop("kind"), values.pop("step"), values.pop("step_s", None)
    # that of a schedule, which is in the log
    values.pop("learning_rate", None)
    words = [
        f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in values.items()
    ]
    if kind == "train":
        words.append(f"{1e3 * seconds:.1f} ms per step")
    screen.say(f"step {step} of {steps}: {', '.join(words)}")


def _facts(session: Session, run: TrainingRun[Any, Any]) -> dict[str, Any]:
    """Return the facts needed to repeat a run."""
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
    """Lock the run folder, and raise if existing files would be overwritten."""
    from tersor.workloads.training.checkpoint import remove_leftovers
    from tersor.workloads.training.run_folder import locked_run_folder

    def refuse() -> None:
        if check is not None:
            check()
        _refuse_wrong_folder(session)

    # collectively, so that no rank sees files that another has already written
    ranks.run_on_all(refuse)
    if session.folder is None or session.checkpoints is None:
        return
    writes_checkpoints = schedule.checkpoints is not None or session.resume
    stack.enter_context(locked_run_folder(session.folder, ranks, shared=writes_checkpoints))
    # check again, because the run that this one waited for may have written a log
    ranks.run_on_all(lambda: _refuse_wrong_folder(session))
    checkpoints = session.checkpoints
    ranks.run_on_all(lambda: remove_leftovers(checkpoints) if ranks.rank == 0 else None)


def _refuse_wrong_folder(session: Session) -> None:
    """Raise ``SpecError`` if the folder holds a run and is not resumed, or if its parent is missing.

    Resuming is also allowed in a folder without a checkpoint, and in a new folder whose parent exists. The
    same command can then start and restart a run, even one killed before it created its folder.
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
def _interrupts_say_how_to_resume(session: Session) -> Iterator[None]:
    """Add to a ``KeyboardInterrupt`` whether the run can be resumed."""
    from tersor.workloads.training.checkpoint import last_step

    try:
        yield
    except KeyboardInterrupt as error:
        folder = session.folder
        # the folder is gone if nothing was written to it
        if folder is not None and folder.exists():
            step = last_step(folder / "checkpoints")
            found = f"the checkpoint of step {step} is in {folder}; go on with --resume"
            none = f"{folder} has no checkpoint yet; --resume starts anew there"
            error.args = (none if step is None else found,)
        raise


def _resume(session: Session, run: TrainingRun[Any, Any]) -> None:
    """Resume from the last checkpoint, if there is one, and report its step."""
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
