"""Quantized reduce-scatter of gradients: first within each node, then across nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch

from tersor.comm import Collective, Exchange, Place
from tersor.comm.levels import Level
from tersor.kernels.group import group_dequantize, group_quantize
from tersor.sites.shards.hop import Coded, Hop, new_hop
from tersor.sites.shards.options import Gradients, derive_seed
from tersor.sites.shards.state import State, joined

_ERROR_NBITS: Final = 8


class GradientScatter:
    """The reduce-scatters of one module on one rank, with its step number and its rounding errors."""

    def __init__(self, options: Gradients, place: Place, module: int = 0) -> None:
        """Prepare for the module with the given number, from which its seeds are derived; the same on all ranks."""
        self.options, self.place, self.module = options, place, module
        self.step = 0
        self.errors: dict[str, torch.Tensor] | None = None
        """Receives the relative error of what this rank sends, by level, unless it is None."""
        self._error_feedback = ErrorFeedback(options)

    def reduce_scatter(self, x: torch.Tensor, out: torch.Tensor) -> Exchange[None]:
        """Sum row ``rank`` of ``x`` over all ranks into ``out``, where ``rank`` is this rank.

        Args:
            x: contiguous, any float dtype, [world_size, size] or flat.
            out: contiguous, with ``size`` values.
        """
        place, options, size = self.place, self.options, out.numel()
        own = derive_seed(options.seed, self.step, place.rank, self.module)
        self._error_feedback.begin_step(self.step)
        self.step += 1
        if options.levels == 1 or not place.is_two_level:
            is_node = options.levels != 1 and place.num_nodes == 1
            nbits = options.node_nbits if is_node else options.nbits
            received = self._hop((place.world_size, 1, size), nbits, x)
            yield from self._sent(x.view(1, -1, size), "all", received, derive_seed(own, 0))
        else:
            shape = (place.ranks_per_node, place.num_nodes, size)
            within = self._hop(shape, options.node_nbits, x)
            rows = x.view(place.num_nodes, place.ranks_per_node, size)
            yield from self._sent(rows, "node", within, derive_seed(own, 0))
            received = self._hop((place.num_nodes, 1, size), options.nbits, x)
            nbytes = place.num_nodes * size * x.element_size()
            yield from self._sent_sum(within, received, derive_seed(own, 1), nbytes)
        received.read_sum(out.view(1, size), hadamard=options.hadamard)

    def _hop(self, shape: tuple[int, int, int], nbits: int, x: torch.Tensor) -> Hop:
        return new_hop(shape, nbits, self.options.group, x.dtype, x.device)

    def _sent(self, rows: torch.Tensor, level: Level, received: Hop, seed: int) -> Exchange[None]:
        """Send each peer its part of ``rows``, [num_rows, num_peers, size]."""
        hop = received.with_peers(received.shape[0])
        self._error_feedback.write(hop, rows, seed, level, hadamard=self.options.hadamard)
        if self.errors is not None and isinstance(hop, Coded):
            decoded = torch.empty(rows.shape, device=rows.device)
            hop.decoded(decoded, hadamard=self.options.hadamard)
            self.errors[level] = relative_error(decoded, rows)
        yield Collective("all_to_all", level, received.buffer, hop.buffer, rows.nbytes)

    def _sent_sum(self, within: Hop, received: Hop, seed: int, nbytes: int) -> Exchange[None]:
        """Sum what the ranks of this node sent, and send each node its row of the sum.

        ``nbytes`` is the uncompressed size of ``received``.
        """
        hop, hadamard = received.with_peers(received.shape[0]), self.options.hadamard
        if not (isinstance(hop, Coded) and isinstance(within, Coded)):
            total = torch.empty(within.shape[1:], device=hop.buffer.device)
            within.read_sum(total, hadamard=hadamard)
            self._error_feedback.write(hop, total[None], seed, "across", hadamard=hadamard)
        elif self.options.error_feedback:
            total = group_dequantize(within.data, within.scales, within.nbits, within.group)
            # the sum and its rounding error stay Hadamard-transformed
            rows = total.view(1, len(hop.buffer), -1)
            self._error_feedback.write(hop, rows, seed, "across", hadamard=False)
        else:
            hop.write_sum(within, seed)
        if self.errors is not None and isinstance(hop, Coded) and isinstance(within, Coded):
            total = group_dequantize(within.data, within.scales, within.nbits, within.group)
            total = total.view(1, len(hop.buffer), -1)
            decoded = hop.decoded(torch.empty_like(total), hadamard=False)
            self.errors["across"] = relative_error(decoded, total)
        yield Collective("all_to_all", "across", received.buffer, hop.buffer, nbytes)

    def state_dict(self) -> State:
        """Return the state needed to resume training exactly."""
        return {"step": torch.tensor(self.step), **joined({"lost": self._error_feedback})}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Resume from a state."""
        self.step = int(state["step"])
        prefix = "lost."
        lost = {k.removeprefix(prefix): x for k, x in state.items() if k.startswith(prefix)}
        self._error_feedback.load_state_dict(lost)


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Return the L2 norm of the difference over that of ``exact``; 0 if both are zero."""
    exact = exact.to(torch.float32)
    norms: list[torch.Tensor] = [torch.linalg.vector_norm(x) for x in (found - exact, exact)]
    return norms[0] / norms[1].clamp(min=torch.finfo(torch.float32).tiny)


class ErrorFeedback:
    """Error feedback: the rounding errors of each hop, as a moving average in 8 bits per value (LoCo)."""

    def __init__(self, options: Gradients) -> None:
        """Use ``error_feedback``, ``reset_every`` and ``group`` of the options; no state is kept if the first is 0."""
        self.options = options
        self._errors: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def begin_step(self, step: int) -> None:
        """Clear the state every ``reset_every`` steps."""
        if step % self.options.reset_every == 0:
            self._errors.clear()

    def write(self, hop: Hop, rows: torch.Tensor, seed: int, name: str, *, hadamard: bool) -> None:
        """Encode the rows plus their accumulated rounding error to a hop, and update the error.

        ``name`` identifies the hop within a step.
        """
        part = self.options.error_feedback
        if not (part and isinstance(hop, Coded)):
            hop.write(rows, seed, hadamard=hadamard)
            return
        before = torch.zeros(rows.numel(), device=rows.device)
        if name in self._errors:
            scales, data = self._errors[name]
            group_dequantize(data, scales, _ERROR_NBITS, self.options.group, False, before)
        total = rows.to(torch.float32) + before.view(rows.shape)
        hop.write(total, seed, hadamard=hadamard)
        lost = total - hop.decoded(torch.empty_like(total), hadamard=hadamard)
        # a NaN or infinity, for which the step is skipped, must not carry over into the next one
        lost = before.lerp_(lost.view(-1), part).nan_to_num_(0.0, 0.0, 0.0)
        self._errors[name] = group_quantize(lost, _ERROR_NBITS, self.options.group)

    def state_dict(self) -> State:
        """Return the quantized errors by hop."""
        return {
            f"{name}.{kind}": x.clone()
            for name, pair in self._errors.items()
            for kind, x in zip(("scales", "data"), pair, strict=True)
        }

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Restore the errors of a state."""
        names = {key.rpartition(".")[0] for key in state}
        self._errors = {name: (state[f"{name}.scales"], state[f"{name}.data"]) for name in names}
