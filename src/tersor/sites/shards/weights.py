"""All-gather of weights as differences from a reference that all ranks share."""

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
from tersor.sites.shards.options import Weights, derive_seed
from tersor.sites.shards.state import State


class Change(IntEnum):
    """How weights changed since they were last gathered; ranks use the maximum over all ranks."""

    NONE = 0
    STEP = 1
    """By an optimizer step: the difference is sent."""
    EDIT = 2
    """In any other way, such as by loading a checkpoint: the weights are sent uncompressed."""


class WeightGather:
    """The all-gathers of one module on one rank, and that rank's part of the reference."""

    def __init__(self, options: Weights, place: Place, module: int = 0) -> None:
        """Prepare for the module with the given number, which must be the same on all ranks."""
        self.options, self.place, self.module = options, place, module
        self.step = 0
        self._is_whole = options.reference == "whole" or not place.is_two_level
        self._reference: torch.Tensor | None = None
        """[num_rows, size]: one row per rank, or per rank with this rank's position in its node."""
        self._own: torch.Tensor | None = None
        """A copy of this rank's row, kept separately because FSDP may write new weights into the row before it gathers."""
        self._is_loaded = self._has_gathered = False
        self.errors: dict[str, torch.Tensor] | None = None
        """Receives the relative error of this rank's weights by level, unless it is None."""

    @property
    def is_new(self) -> bool:
        """True if the weights have not been gathered yet."""
        return self._own is None if self.options.differences else not self._has_gathered

    def memory_for(self, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return flat memory for all weights, which is the reference itself if that covers all ranks.

        Gathering into the reference saves a copy of all weights.
        """
        if self._is_whole and self.options.differences:
            return self._reference_for(size // self.place.world_size, dtype, device).view(-1)
        return torch.empty(size, dtype=dtype, device=device)

    def _reference_for(self, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        num_rows = self.place.world_size if self._is_whole else self.place.num_nodes
        known = self._reference
        if known is None or (known.shape[1], known.dtype, known.device) != (size, dtype, device):
            # a tensor created during evaluation is written to in later training steps
            with torch.inference_mode(False):
                known = torch.empty(num_rows, size, dtype=dtype, device=device)
            self._reference, self._own = known, None
        return known

    def all_gather(self, x: torch.Tensor, out: torch.Tensor, change: Change) -> Exchange[None]:
        """Write the weights of all ranks to ``out``, as the reference or the received codes give them.

        Args:
            x: this rank's weights, contiguous; may be its part of ``out``.
            out: contiguous, flat or [world_size, size], of the dtype of ``x``; may come from ``memory_for``.
            change: how the weights changed since the last call; the same on all ranks.
        """
        # without a change, as in backward, the same seed reproduces the rounding of the last gather
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
                # x may share memory with the reference
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
        """Send ``x - own``, and add the differences of all ranks to the reference and to ``own``."""
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
        return derive_seed(self.options.seed, self.step, self.place.rank, self.module)

    def _copied_out(self, reference: torch.Tensor, out: torch.Tensor) -> Exchange[None]:
        """Fill ``out`` from the reference, which the ranks of a node may hold in parts."""
        if self._is_whole:
            if out.data_ptr() != reference.data_ptr():
                out.view(reference.shape).copy_(reference)
            return
        num_nodes, num_local = self.place.num_nodes, self.place.ranks_per_node
        gathered = reference.new_empty(num_local, *reference.shape)
        yield Collective("all_gather", "node", gathered, reference, gathered.nbytes)
        out.view(num_nodes, num_local, -1).copy_(gathered.transpose(0, 1))

    def state_dict(self) -> State:
        """Return this rank's part of the state needed to resume training exactly."""
        own = {} if self._own is None else {"own": self._own.clone()}
        return {"step": torch.tensor(self.step), **own}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Resume from a state. All ranks must do so before the next gather."""
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
