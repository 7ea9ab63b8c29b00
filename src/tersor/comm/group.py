"""A process group that a failing rank leaves, and that detects a rank which is out of step.

Collectives are matched by the order in which ranks enter them. If a rank skips or repeats one, its bytes
end up in a different exchange: gloo aborts the process if they are too many, and garbage is decoded if they
fit. Every exchange therefore begins with a message of fixed size that states what the rank is about to do.
The message travels while rows are encoded, and nothing of variable size is sent before it has been compared.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final
from weakref import WeakSet

import torch
import torch.distributed as dist

from tersor.comm.agreement import (
    check_same_everywhere,
    failure_announced,
    first_line,
    gathered,
)
from tersor.errors import ExchangeError, TersorError

_FAILURE: Final = "failure"
_LEFT: Final = "left"
_AGREEMENT: Final = "agreement on the step"


@dataclass(frozen=True, slots=True)
class Turn:
    """Identifies the exchange a rank is about to enter; ranks in step agree on it.

    Attributes:
        channel: one of the channels that the group was created with.
        number: number of the exchange, counted since the group was created.
        iteration: training iteration; ranks resumed at different iterations are out of step too.
    """

    channel: str
    number: int
    iteration: int = 0

    def __str__(self) -> str:
        return f"{self.channel} exchange {self.number} (iteration {self.iteration})"


@dataclass(eq=False, slots=True, weakref_slot=True)
class InFlight:
    """A collective that has started.

    It releases its torch ``Work`` when waited for or dropped. A ``Work`` that is still referenced keeps
    the group connected, and so leaves the peers of a rank that has left waiting.
    """

    work: Any

    def wait(self) -> None:
        """Wait until the collective completes."""
        work, self.work = self.work, None
        work.wait()


def _timeout_of(group: dist.ProcessGroup | None, device: torch.device) -> timedelta | None:
    """Return the timeout of a group; a new group does not inherit it."""
    whole: Any = group or dist.group.WORLD
    # torch has no public accessor for it
    options = getattr(whole._get_backend(device), "options", None)  # noqa: SLF001
    return getattr(options, "_timeout", None)


def _takes_cpu_tensors(group: Any) -> bool:
    try:
        group._get_backend(torch.device("cpu"))  # noqa: SLF001 - as above
    except RuntimeError:
        return False
    return True


def _new_group(
    group: dist.ProcessGroup | None,
    parts: list[list[int]],
    timeout: timedelta | None,
    backend: str,
) -> Any:
    """Split ``group`` into new groups; return the one that contains this rank.

    If all ranks take part, torch names groups by a counter. Otherwise it names them by their ranks and the
    current number of groups. A group created after another one of the same ranks was destroyed may then
    find the stale addresses of that one.
    """
    own = next(part for part in parts if dist.get_rank() in part)
    if dist.get_world_size(group) < dist.get_world_size():
        return dist.new_group(own, timeout, backend, use_local_synchronization=True)
    return [dist.new_group(part, timeout, backend) for part in parts][parts.index(own)]


class RankGroup:
    """The ranks of a process group, in a new group owned by this object.

    Every rank must make the same calls in the same order. A rank that fails leaves the group and
    publishes the reason, so the others fail too instead of waiting for it.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        device: torch.device,
        channels: Sequence[str],
        parts: Sequence[Sequence[int]] | None = None,
        failures_of: RankGroup | None = None,
    ) -> None:
        """Create a new group with the ranks of ``group``; a collective call.

        Args:
            group: the ranks that take part; all ranks if None.
            device: of the tensors that are sent.
            channels: names of what is exchanged; the same list on all ranks.
            parts: a partition of the ranks of ``group``, by global rank, equal on all of them. Each part
                becomes a group, and this rank joins the one that contains it.
            failures_of: an enclosing group; the failures of either group are published to both.

        Raises:
            ExchangeError: a rank could not connect.
        """
        parts = parts or [dist.get_process_group_ranks(group or dist.group.WORLD)]
        ranks = next(part for part in parts if dist.get_rank() in part)
        self.rank, self.world_size = ranks.index(dist.get_rank()), len(ranks)
        self.channels = tuple(channels)
        # for messages: the number in ``group``, not the one in a part of it
        self._name = f"rank {dist.get_rank(group)}"
        self._in_flight: WeakSet[InFlight] = WeakSet()
        self._group: Any = None
        self._control: Any = None
        self._failures: Any = failures_of._failures if failures_of else None  # noqa: SLF001 - of its kind
        with failure_announced(group):
            timeout = _timeout_of(group, device)
        with self.explained("set-up"):
            self._connect(group, timeout, [list(part) for part in parts])

    def _connect(
        self, group: dist.ProcessGroup | None, timeout: timedelta | None, parts: list[list[int]]
    ) -> None:
        """Join the new groups; return when every rank has joined.

        A rank that left earlier would break the connection setup of the others.
        """
        new_group = partial(_new_group, group, parts, timeout)
        with failure_announced(group):
            self._group = new_group(dist.get_backend(group))
            # NCCL takes no CPU tensors, and comparing turns must not make the host wait for the device
            self._control = self._group if _takes_cpu_tensors(self._group) else new_group("gloo")
        if self._failures is None:
            store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - nothing public has it
            self._failures = dist.distributed_c10d.PrefixStore(
                f"tersor/{self._group.group_name}", store
            )
        with self.abort_on_error():
            for rank, is_connected in enumerate(gathered(True, group)):
                if not is_connected:
                    raise ExchangeError(f"rank {rank} could not connect; look at its error")

    def close(self) -> None:
        """Leave the group; pending collectives of peers fail at once and report that this rank left."""
        if self._group is not None and dist.is_initialized():
            self._say(_LEFT, f"{self._name} closed its exchange")
        self._leave()

    def _leave(self) -> None:
        group, self._group = self._group, None
        control, self._control = self._control, None
        for operation in self._in_flight:
            operation.work = None
        if group is not None and dist.is_initialized():
            for one in dict.fromkeys((group, control)):
                # torch raises if the group was already destroyed with its world
                with suppress(ValueError):
                    dist.destroy_process_group(one)

    @contextmanager
    def abort_on_error(self) -> Iterator[None]:
        """On any error or interrupt, notify the peers, leave the group and re-raise unchanged.

        This includes errors that the peers may be raising too: a rank cannot know, and they may be waiting.
        """
        if self._group is None:
            raise ExchangeError("this exchange failed or was closed before; make a new one")
        try:
            yield
        except BaseException as error:
            self.abort(error)
            raise

    def abort(self, error: BaseException) -> None:
        """Publish an error of this rank to the peers, and leave the group."""
        if self._group is not None and not isinstance(error, ExchangeError):
            words = f"{self._name} failed: {type(error).__name__}: {first_line(error)}"
            if isinstance(error, Exception):
                # logged ahead of the tracebacks of all ranks, which repeat it at length
                logging.getLogger("tersor").error("%s; this ends the exchange on all ranks", words)
            self._say(_FAILURE, words)
        self._leave()

    def _say(self, key: str, words: str) -> None:
        """Store a message for peers that will find this rank gone; the first one under a key wins."""
        with suppress(RuntimeError):
            if self._failures is not None:
                self._failures.compare_set(key, "", words)

    def _failure_of_peer(self) -> str | None:
        """Return the message of the first peer that failed or, failing that, left; None if there is none."""
        with suppress(RuntimeError):
            for key in (_FAILURE, _LEFT):
                if self._failures is not None and self._failures.check([key]):
                    return str(self._failures.get(key), "utf-8")
        return None

    @contextmanager
    def guarded(self, phase: str) -> Iterator[None]:
        """Leave the group on any error, and translate errors of the backend.

        Use it for blocks that only communicate. Local computation belongs in ``abort_on_error`` alone,
        because an error there is this rank's own.
        """
        with self.abort_on_error(), self.explained(phase):
            yield

    @contextmanager
    def explained(self, phase: str) -> Iterator[None]:
        """Translate an error of the backend: a peer is gone, for the reason it stored, if any.

        The block must only start collectives or wait for them.

        Args:
            phase: purpose of the collective; it follows "the" in the message.

        Raises:
            ExchangeError: a collective failed.
        """
        try:
            yield
        except (TersorError, torch.OutOfMemoryError):
            # out of memory on this device is not caused by a peer
            raise
        except RuntimeError as error:
            # torch's frames in the traceback reference the group, which would keep it connected
            error.__traceback__ = None
            words = self._failure_of_peer()
            if words is not None:
                raise ExchangeError(f"{words}; this ended the {phase} on {self._name}") from None
            raise ExchangeError(
                f"the {phase} failed on {self._name}: a peer left, failed or timed out; look for the "
                f"first error of any rank ({first_line(error)})"
            ) from error

    def all_to_all(
        self,
        received: torch.Tensor,
        sent: torch.Tensor,
        receive_counts: Sequence[int] | None = None,
        send_counts: Sequence[int] | None = None,
    ) -> InFlight:
        """Start an all-to-all with the given elements per rank; equal parts without counts."""
        receive, send = (None if n is None else list(n) for n in (receive_counts, send_counts))
        return self._started(
            dist.all_to_all_single(received, sent, receive, send, group=self._group, async_op=True)
        )

    def all_gather(self, received: torch.Tensor, sent: torch.Tensor) -> InFlight:
        """Start an all-gather; ``received`` holds the parts in rank order."""
        # torch 2.13 deprecates the name that is the only one in 2.11 and 2.12
        gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        return self._started(gather(received, sent, group=self._group, async_op=True))

    def elementwise_max(self, numbers: Sequence[int]) -> list[int]:
        """Return the elementwise maximum over all ranks; the host waits for peers, not for its device."""
        found = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self._control)
        return found.tolist()

    def check_same(self, arguments: Mapping[str, object] | None, what: str) -> None:
        """Raise ``SpecError`` unless all ranks pass equal arguments; a collective call of the hosts.

        Each rank receives a hash of 8 bytes; the arguments themselves are sent only if hashes differ, to
        name the first one that does. ``what`` is as in ``check_same_everywhere``. A rank that could not
        build its arguments passes None, and raises its own error once all ranks know.

        Raises:
            SpecError: the arguments of a rank differ, or it could not build them.
            ExchangeError: a peer failed.
        """
        text = repr([(name, repr(value)) for name, value in (arguments or {}).items()])
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        own = int.from_bytes(digest, "little", signed=True)
        sent = torch.full((self.world_size,), own, dtype=torch.int64, device="cpu")
        received = torch.empty_like(sent)
        with self.explained("agreement on arguments"):
            dist.all_to_all_single(received, sent, group=self._control)
        # if any two hashes differ, every rank sees one that differs from its own
        if not received.ne(own).any():
            return
        if arguments is None:
            gathered(None, self._control)
        else:
            check_same_everywhere(arguments, what, self._control)

    def _started(self, work: Any) -> InFlight:
        operation = InFlight(work)
        self._in_flight.add(operation)
        return operation

    def compare_turns(
        self, turn: Turn, send_nbytes: Sequence[int] | None, receive_nbytes: Sequence[int] | None
    ) -> TurnComparison:
        """Start comparing the turns of all ranks.

        Args:
            turn: of this rank.
            send_nbytes: bytes for each rank, if known in advance.
            receive_nbytes: bytes from each rank, if known in advance.
        """
        unknown = [0] * self.world_size
        channel = self.channels.index(turn.channel)
        own = [channel, turn.number, turn.iteration]
        fields = [[*own, nbytes] for nbytes in send_nbytes or unknown]
        sent = torch.tensor(fields, dtype=torch.int64, device="cpu")
        received = torch.empty_like(sent)
        with self.explained(_AGREEMENT):
            operation = self._started(
                dist.all_to_all_single(received, sent, group=self._control, async_op=True)
            )
        return TurnComparison(
            self, turn, list(receive_nbytes or unknown), sent, received, operation
        )


@dataclass(frozen=True, slots=True)
class TurnComparison:
    """A comparison of all ranks' turns in flight."""

    group: RankGroup
    turn: Turn
    receive_nbytes: list[int]
    sent: torch.Tensor
    received: torch.Tensor
    operation: InFlight

    def check(self) -> None:
        """Wait for the turns of all ranks, and require that they agree.

        Raises:
            ExchangeError: a rank failed, is at another turn, or sends other sizes than expected.
        """
        with self.group.explained(_AGREEMENT):
            self.operation.wait()
        names = self.group.channels
        for rank, (channel, number, iteration, nbytes) in enumerate(self.received.tolist()):
            name = names[channel] if 0 <= channel < len(names) else f"unknown ({channel})"
            turn = Turn(name, number, iteration)
            if turn != self.turn:
                raise ExchangeError(
                    f"rank {rank} is at its {turn}, rank {self.group.rank} at its {self.turn}; all "
                    "ranks must call start, wait and backward equally often and in the same order, "
                    "also after a loss that is skipped, and load states of the same iteration"
                )
            if nbytes != self.receive_nbytes[rank]:
                raise ExchangeError(
                    f"rank {rank} sends {nbytes} bytes in its {turn}, where rank {self.group.rank} "
                    f"expects {self.receive_nbytes[rank]}; give all ranks the same batches"
                )
