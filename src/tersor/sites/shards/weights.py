"""All-gather of weights as differences to a reference that ranks hold in common."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import torch

from tersor.comm import Collective, Exchange, Place
from tersor.comm.levels import Level
from tersor.errors import SpecError
from tersor.sites.shards.gather import gather_rows
from tersor.sites.shards.gradients import relative_error
from tersor.sites.shards.hop import Coded
from tersor.sites.shards.options import Weights, seed_of
from tersor.sites.shards.state import State


class Change(IntEnum):
    """What became of weights since they were last gathered; ranks go by the largest of all."""

    NONE = 0
    STEP = 1
    """An optimizer's step: a difference is sent."""
    EDIT = 2
    """Anything else, such as a loaded checkpoint: they are sent as they are."""


class WeightGather:
    """The all-gathers of one rank for one module, and its part of the reference."""

    def __init__(self, options: Weights, place: Place, module: int = 0) -> None:
        """Take the number of the module, the same on all ranks."""
        self.options, self.place, self.module = options, place, module
        self.step = 0
        self._is_whole = options.reference == "whole" or not place.is_two_level
        self._reference: torch.Tensor | None = None
        """[num_rows, size]: of every rank, or of those with this rank's place in their nodes."""
        self._own: torch.Tensor | None = None
        """This rank's row, apart: FSDP writes the weights there before it gathers."""
        self._is_loaded = self._has_gathered = False
        self.errors: dict[str, torch.Tensor] | None = None
        """Filled with the relative error of this rank's weights, while it is not None."""

    @property
    def is_new(self) -> bool:
        """True if weights have not been gathered yet."""
        return self._own is None if self.options.differences else not self._has_gathered

    def memory_for(self, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return memory for all weights, flat: the reference itself where it is of all ranks.

        Who gathers into it saves a copy of all weights.
        """
        if self._is_whole and self.options.differences:
            return self._reference_for(size // self.place.world_size, dtype, device).view(-1)
        return torch.empty(size, dtype=dtype, device=device)

    def _reference_for(self, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        num_rows = self.place.world_size if self._is_whole else self.place.num_nodes
        known = self._reference
        if known is None or (known.shape[1], known.dtype, known.device) != (size, dtype, device):
            # what is made in an evaluation is written to in later steps
            with torch.inference_mode(False):
                known = torch.empty(num_rows, size, dtype=dtype, device=device)
            self._reference, self._own = known, None
        return known

    def all_gather(self, x: torch.Tensor, out: torch.Tensor, change: Change) -> Exchange[None]:
        """Write the weights of all ranks, as the reference knows them, into ``out``.

        Args:
            x: contiguous, this rank's weights; may be its part of ``out``.
            out: contiguous, flat or [world_size, size], of the dtype of ``x``; may be ``memory_for``.
            change: of the weights since the last call; the same on all ranks.
        """
        # backward gathers what forward did, rounded in the same way
        self.step += change is not Change.NONE
        self._has_gathered = True
        if not self.options.differences:
            sent = self._coded(x)
            sent.write(x.view(1, 1, -1), self._seed(), hadamard=False)
            for part, rows in (yield from gather_rows(sent, self.place, x.nbytes)):
                part.read_rows(out.view(self.place.world_size, -1)[rows])
            return
        level: Level = "all" if self._is_whole else "across"
        row = self.place.rank if self._is_whole else self.place.node
        reference = self._reference_for(x.numel(), x.dtype, x.device)
        if self._own is None or change is Change.EDIT:
            with torch.inference_mode(False):
                self._own = torch.empty_like(x).copy_(x)
            yield Collective("all_gather", level, reference, self._own, reference.nbytes)
        else:
            if self._is_loaded:
                # x may lie in the reference
                weights = x.clone()
                yield Collective("all_gather", level, reference, self._own, reference.nbytes)
                x.copy_(weights)
            if change is Change.STEP:
                yield from self._add_difference(x, self._own, reference, row)
            reference[row].copy_(self._own)
        self._is_loaded = False
        yield from self._copied_out(reference, out)

    def _add_difference(
        self, x: torch.Tensor, own: torch.Tensor, reference: torch.Tensor, row: int
    ) -> Exchange[None]:
        """Send how ``x`` differs from ``own``, and add what all ranks sent to the reference."""
        exact = x.clone() if self.errors is not None else x
        sent = self._coded(x)
        sent.write_difference(x, own, self._seed())
        received = yield from gather_rows(sent, self.place, x.nbytes, in_node=self._is_whole)
        reference[row].copy_(own)
        for part, rows in received:
            part.read_rows(reference[rows], add=True)
        own.copy_(reference[row])
        if self.errors is not None:
            level = "across" if self.place.is_two_level else "all"
            self.errors[level] = relative_error(own, exact)

    def _coded(self, x: torch.Tensor) -> Coded:
        """Return a buffer for the codes of this rank's weights."""
        return Coded.empty((1, 1, x.numel()), self.options.nbits, self.options.group, x.device)

    def _seed(self) -> int | None:
        if self.options.rounding == "nearest":
            return None
        return seed_of(self.options.seed, self.step, self.place.rank, self.module)

    def _copied_out(self, reference: torch.Tensor, out: torch.Tensor) -> Exchange[None]:
        """Fill ``out`` from the reference, of which a node's ranks hold a part each."""
        if self._is_whole:
            if out.data_ptr() != reference.data_ptr():
                out.view(reference.shape).copy_(reference)
            return
        num_nodes, num_local = self.place.num_nodes, self.place.ranks_per_node
        gathered = reference.new_empty(num_local, *reference.shape)
        yield Collective("all_gather", "node", gathered, reference, gathered.nbytes)
        out.view(num_nodes, num_local, -1).copy_(gathered.transpose(0, 1))

    def state_dict(self) -> State:
        """Return what a training needs to go on as if it had not stopped: this rank's part of it."""
        own = {} if self._own is None else {"own": self._own.clone()}
        return {"step": torch.tensor(self.step), **own}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from a state; all ranks do before weights are gathered again."""
        self.step, own = int(state["step"]), state.get("own")
        if own is None and self.step and self.options.differences:
            raise SpecError(
                "this state lacks the weights that ranks have in common; save and load all of it, with "
                "torch.save and torch.load"
            )
        self._has_gathered = self.step > 0
        self._own = self._reference = None
        if own is not None:
            self._reference_for(own.numel(), own.dtype, own.device)
            self._own = own.clone()
        self._is_loaded = own is not None
