"""A process group that a failing rank leaves, and that notices a rank which is out of step.

Collectives match by the order in which ranks enter them. A rank that skips one, or takes one twice, would
hand its bytes to another exchange: gloo ends the process where they are too many, and decodes garbage where
they fit. So every exchange begins with a message of fixed size, which says what the rank is about to do; it
travels while rows are encoded, and nothing of variable size is sent before it was compared.
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
    """What a rank is about to exchange; ranks that are in step agree on it.

    Attributes:
        channel: which of the channels that the group was made with.
        number: of the exchange, counted since the group was made.
        iteration: of the training; ranks that were resumed at different ones are out of step too.
    """

    channel: str
    number: int
    iteration: int = 0

    def __str__(self) -> str:
        return f"{self.channel} exchange {self.number} (iteration {self.iteration})"


@dataclass(eq=False, slots=True, weakref_slot=True)
class InFlight:
    """A collective that has begun.

    It gives its work away when it is waited for or dropped: a work that is held keeps the group
    connected, and the peers of a rank that left it waiting.
    """

    work: Any

    def wait(self) -> None:
        """Wait until it is done."""
        work, self.work = self.work, None
        work.wait()


def _timeout_of(group: dist.ProcessGroup | None, device: torch.device) -> timedelta | None:
    """Return how long a group waits for its ranks, which a new group does not take over."""
    whole: Any = group or dist.group.WORLD
    # torch has no public way to ask
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
    """Divide ``group`` into new groups; return the one that this rank is in.

    Where all ranks take part, torch counts groups to name them. Otherwise it names them by their ranks and
    by how many there are at a time, so that a group made after one of the same ranks was left may find
    that one's addresses.
    """
    own = next(part for part in parts if dist.get_rank() in part)
    if dist.get_world_size(group) < dist.get_world_size():
        return dist.new_group(own, timeout, backend, use_local_synchronization=True)
    return [dist.new_group(part, timeout, backend) for part in parts][parts.index(own)]


class RankGroup:
    """The ranks of a process group, in a group of its own.

    Every rank makes the same calls in the same order. A rank that fails leaves, so that the others
    fail too instead of waiting for it, and tells them why.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        device: torch.device,
        channels: Sequence[str],
        parts: Sequence[Sequence[int]] | None = None,
        failures_of: RankGroup | None = None,
    ) -> None:
        """Make a group with the ranks of ``group`` (all of them if None); a collective call.

        Args:
            group: whose ranks take part.
            device: of the tensors that are sent.
            channels: names of what is exchanged; the same list on all ranks.
            parts: global numbers of the ranks of ``group``, divided into new groups, the same on all of
                them; this rank joins the one that it is in.
            failures_of: a group of more ranks, which are told why this one failed, and fail with it.

        Raises:
            ExchangeError: a rank could not connect.
        """
        parts = parts or [dist.get_process_group_ranks(group or dist.group.WORLD)]
        ranks = next(part for part in parts if dist.get_rank() in part)
        self.rank, self.world_size = ranks.index(dist.get_rank()), len(ranks)
        self.channels = tuple(channels)
        # in messages: ranks of a node have other numbers among themselves
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
        """Join the new groups, and return when every rank has.

        A rank that left while another still connects would break its connecting.
        """
        new_group = partial(_new_group, group, parts, timeout)
        with failure_announced(group):
            self._group = new_group(dist.get_backend(group))
            # NCCL takes no CPU tensors, and the host must not wait for the device to compare turns
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
        """Leave the group; what peers still wait for fails at once, and says that this rank left."""
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
                # torch refuses one that ended with the world it was made in
                with suppress(ValueError):
                    dist.destroy_process_group(one)

    @contextmanager
    def abort_on_error(self) -> Iterator[None]:
        """Leave the group on any error or interrupt, which stays what it is, and tell the peers.

        Also on one that the peers may be making too: a rank cannot know, and they may be waiting.
        """
        if self._group is None:
            raise ExchangeError("this exchange failed or was closed before; make a new one")
        try:
            yield
        except BaseException as error:
            self.abort(error)
            raise

    def abort(self, error: BaseException) -> None:
        """Tell the peers of an error of this rank, and leave the group."""
        if self._group is not None and not isinstance(error, ExchangeError):
            words = f"{self._name} failed: {type(error).__name__}: {first_line(error)}"
            if isinstance(error, Exception):
                # before the tracebacks of all ranks, which tell the same at length
                logging.getLogger("tersor").error("%s; this ends the exchange on all ranks", words)
            self._say(_FAILURE, words)
        self._leave()

    def _say(self, key: str, words: str) -> None:
        """Leave word for peers that will find this rank gone; the first word under a key stays."""
        with suppress(RuntimeError):
            if self._failures is not None:
                self._failures.compare_set(key, "", words)

    def _failure_of_peer(self) -> str | None:
        """Return what the first peer that failed, or else left, said; None if it cannot be told."""
        with suppress(RuntimeError):
            for key in (_FAILURE, _LEFT):
                if self._failures is not None and self._failures.check([key]):
                    return str(self._failures.get(key), "utf-8")
        return None

    @contextmanager
    def guarded(self, phase: str) -> Iterator[None]:
        """Leave the group on any error, and say what the backend's error means.

        For blocks that only talk to peers. What a rank computes by itself belongs in ``abort_on_error``
        alone: an error there is its own.
        """
        with self.abort_on_error(), self.explained(phase):
            yield

    @contextmanager
    def explained(self, phase: str) -> Iterator[None]:
        """Say what the backend's error means: a peer is gone, with its own words where it left any.

        The block starts or waits for collectives and does nothing else.

        Args:
            phase: what a collective is for; the message goes on from "the".

        Raises:
            ExchangeError: a collective failed.
        """
        try:
            yield
        except (TersorError, torch.OutOfMemoryError):
            # no peer makes this device run out of memory
            raise
        except RuntimeError as error:
            # frames of torch hold the group, and a group that is held stays connected
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
        """Start to move so many elements from and to each rank; equally many without counts."""
        receive, send = (None if n is None else list(n) for n in (receive_counts, send_counts))
        return self._started(
            dist.all_to_all_single(received, sent, receive, send, group=self._group, async_op=True)
        )

    def all_gather(self, received: torch.Tensor, sent: torch.Tensor) -> InFlight:
        """Start to collect what each rank sends, in their order."""
        # torch 2.13 warns of the name that 2.11 and 2.12 have alone
        gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        return self._started(gather(received, sent, group=self._group, async_op=True))

    def largest(self, numbers: Sequence[int]) -> list[int]:
        """Return the largest of each number over all ranks; the host waits, and not for its device."""
        found = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self._control)
        return found.tolist()

    def check_same(self, arguments: Mapping[str, object] | None, what: str) -> None:
        """Raise ``SpecError`` unless all ranks give the same arguments; a collective call of their hosts.

        A hash of 8 bytes goes to each rank; arguments follow only where ranks differ, to name the first
        that does. ``what`` is as in ``check_same_everywhere``. A rank that could not make its arguments
        gives None, and raises its own error when all ranks know.

        Raises:
            SpecError: a rank differs, or could not make its arguments.
            ExchangeError: a peer failed.
        """
        text = repr([(name, repr(value)) for name, value in (arguments or {}).items()])
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        own = int.from_bytes(digest, "little", signed=True)
        sent = torch.full((self.world_size,), own, dtype=torch.int64, device="cpu")
        received = torch.empty_like(sent)
        with self.explained("agreement on arguments"):
            dist.all_to_all_single(received, sent, group=self._control)
        # every rank sees one that differs from its own if any two do
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
        """Start to compare with all ranks what each is about to exchange.

        Args:
            turn: of this rank.
            send_nbytes: bytes for each rank, where they are known beforehand.
            receive_nbytes: bytes from each rank, likewise.
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
    """The comparison of all ranks' turns, on its way."""

    group: RankGroup
    turn: Turn
    receive_nbytes: list[int]
    sent: torch.Tensor
    received: torch.Tensor
    operation: InFlight

    def check(self) -> None:
        """Return when all ranks are at this turn.

        Raises:
            ExchangeError: a rank is at another one, or failed.
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
