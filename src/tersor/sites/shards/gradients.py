"""Reduce-scatter of gradients: ranks of a node add up first, then nodes, in few bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from tersor.comm import Collective, Exchange, Place
from tersor.comm.levels import Level
from tersor.kernels.group import group_dequantize, group_quantize
from tersor.sites.shards.hop import Coded, Hop, new_hop
from tersor.sites.shards.options import Gradients, seed_of
from tersor.sites.shards.state import State, joined

_ERROR_NBITS: Final = 8


class GradientScatter:
    """The reduce-scatters of one rank for one module: whose seed is next, and what rounding lost."""

    def __init__(self, options: Gradients, place: Place, module: int = 0) -> None:
        """Take the number of the module, the same on all ranks: each rounds with seeds of its own."""
        self.options, self.place, self.module = options, place, module
        self.step = 0
        self.errors: dict[str, torch.Tensor] | None = None
        """Filled with the relative error of what each level sends, while it is not None."""
        self._lost = LostValues(options)

    def reduce_scatter(self, x: torch.Tensor, out: torch.Tensor) -> Exchange[None]:
        """Write the sum over all ranks of row ``rank`` of their ``x`` into ``out``.

        Args:
            x: contiguous, any float dtype, [world_size, size] or flat.
            out: contiguous, of ``size`` values.
        """
        place, options, size = self.place, self.options, out.numel()
        own = seed_of(options.seed, self.step, place.rank, self.module)
        self._lost.begin_step(self.step)
        self.step += 1
        if options.levels == 1 or not place.is_two_level:
            is_node = options.levels != 1 and place.num_nodes == 1
            nbits = options.node_nbits if is_node else options.nbits
            received = self._hop((place.world_size, 1, size), nbits, x)
            yield from self._sent(x.view(1, -1, size), "all", received, seed_of(own, 0))
        else:
            shape = (place.ranks_per_node, place.num_nodes, size)
            within = self._hop(shape, options.node_nbits, x)
            rows = x.view(place.num_nodes, place.ranks_per_node, size)
            yield from self._sent(rows, "node", within, seed_of(own, 0))
            received = self._hop((place.num_nodes, 1, size), options.nbits, x)
            nbytes = place.num_nodes * size * x.element_size()
            yield from self._sent_sum(within, received, seed_of(own, 1), nbytes)
        received.read_sum(out.view(1, size), hadamard=options.hadamard)

    def _hop(self, shape: tuple[int, int, int], nbits: int, x: torch.Tensor) -> Hop:
        return new_hop(shape, nbits, self.options.group, x.dtype, x.device)

    def _sent(self, rows: torch.Tensor, level: Level, received: Hop, seed: int) -> Exchange[None]:
        """Send each peer its rows of [num_rows, num_peers, size]."""
        hop = received.with_peers(received.shape[0])
        self._lost.write(hop, rows, seed, level, hadamard=self.options.hadamard)
        if self.errors is not None and isinstance(hop, Coded):
            decoded = torch.empty(rows.shape, device=rows.device)
            hop.decoded(decoded, hadamard=self.options.hadamard)
            self.errors[level] = relative_error(decoded, rows)
        yield Collective("all_to_all", level, received.buffer, hop.buffer, rows.nbytes)

    def _sent_sum(self, within: Hop, received: Hop, seed: int, nbytes: int) -> Exchange[None]:
        """Send each node its row of the sum over what the ranks of this one sent.

        ``nbytes`` is what ``received`` would take if it were not encoded.
        """
        hop, hadamard = received.with_peers(received.shape[0]), self.options.hadamard
        if not (isinstance(hop, Coded) and isinstance(within, Coded)):
            total = torch.empty(within.shape[1:], device=hop.buffer.device)
            within.read_sum(total, hadamard=hadamard)
            self._lost.write(hop, total[None], seed, "across", hadamard=hadamard)
        elif self.options.error_feedback:
            total = group_dequantize(within.data, within.scales, within.nbits, within.group)
            # still transformed, and so is what gets lost
            rows = total.view(1, len(hop.buffer), -1)
            self._lost.write(hop, rows, seed, "across", hadamard=False)
        else:
            hop.write_sum(within, seed)
        if self.errors is not None and isinstance(hop, Coded) and isinstance(within, Coded):
            total = group_dequantize(within.data, within.scales, within.nbits, within.group)
            total = total.view(1, len(hop.buffer), -1)
            decoded = hop.decoded(torch.empty_like(total), hadamard=False)
            self.errors["across"] = relative_error(decoded, total)
        yield Collective("all_to_all", "across", received.buffer, hop.buffer, nbytes)

    def state_dict(self) -> State:
        """Return what a training needs to go on as if it had not stopped."""
        return {"step": torch.tensor(self.step), **joined({"lost": self._lost})}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Go on from a state."""
        self.step = int(state["step"])
        prefix = "lost."
        lost = {k.removeprefix(prefix): x for k, x in state.items() if k.startswith(prefix)}
        self._lost.load_state_dict(lost)


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Return the norm of the difference over that of ``exact``; 0 of zeros."""
    exact = exact.to(torch.float32)
    norms: list[torch.Tensor] = [torch.linalg.vector_norm(x) for x in (found - exact, exact)]
    return norms[0] / norms[1].clamp(min=torch.finfo(torch.float32).tiny)


class LostValues:
    """What rounding lost in each hop, as a moving average in 8 bits per value (LoCo)."""

    def __init__(self, options: Gradients) -> None:
        """Take ``error_feedback`` and ``reset_every``; without the first, nothing is remembered."""
        self.options = options
        self._lost: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def begin_step(self, step: int) -> None:
        """Forget everything where it is time to."""
        if step % self.options.reset_every == 0:
            self._lost.clear()

    def write(self, hop: Hop, rows: torch.Tensor, seed: int, name: str, *, hadamard: bool) -> None:
        """Write rows and what was lost of them so far to a hop, and remember what is lost now.

        ``name`` tells the hops of a step apart.
        """
        part = self.options.error_feedback
        if not (part and isinstance(hop, Coded)):
            hop.write(rows, seed, hadamard=hadamard)
            return
        before = torch.zeros(rows.numel(), device=rows.device)
        if name in self._lost:
            scales, data = self._lost[name]
            group_dequantize(data, scales, _ERROR_NBITS, self.options.group, False, before)
        total = rows.to(torch.float32) + before.view(rows.shape)
        hop.write(total, seed, hadamard=hadamard)
        lost = total - hop.decoded(torch.empty_like(total), hadamard=hadamard)
        # a step that is skipped for a value that is not finite leaves nothing for the next one
        lost = before.lerp_(lost.view(-1), part).nan_to_num_(0.0, 0.0, 0.0)
        self._lost[name] = group_quantize(lost, _ERROR_NBITS, self.options.group)

    def state_dict(self) -> State:
        """Return what is remembered."""
        return {
            f"{name}.{kind}": x.clone()
            for name, pair in self._lost.items()
            for kind, x in zip(("scales", "data"), pair, strict=True)
        }

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Remember what a state does."""
        names = {key.rpartition(".")[0] for key in state}
        self._lost = {name: (state[f"{name}.scales"], state[f"{name}.data"]) for name in names}
