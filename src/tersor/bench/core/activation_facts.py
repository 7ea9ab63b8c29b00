"""Facts in a result row about a training step and the tensors it saves for backward."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from tersor.bench.core.row_checks import Count, FromOne, require
from tersor.bench.core.timing import Percentiles


class SavedBytes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tensors that the forward pass of one step saves for backward, each storage counted once.

    Parameters, buffers and the batch are excluded because they stay in memory anyway. Tensors that the
    loss saves are excluded too.

    Attributes:
        nbytes: bytes of all saved tensors, as autograd saves them.
        floats_nbytes: bytes of the floating-point tensors among them.
        held_nbytes: bytes held in memory in place of all saved tensors.
        held_floats_nbytes: bytes held in place of the floating-point tensors.
    """

    nbytes: Count
    floats_nbytes: Count
    held_nbytes: Count
    held_floats_nbytes: Count

    def __post_init__(self) -> None:
        """Reject floating-point tensors that exceed the total."""
        require("floats_nbytes", self.floats_nbytes <= self.nbytes, "at most nbytes")
        is_part = self.held_floats_nbytes <= self.held_nbytes
        require("held_floats_nbytes", is_part, "at most held_nbytes")

    @property
    def ratio(self) -> float:
        """All saved bytes divided by the bytes held."""
        return self.nbytes / max(1, self.held_nbytes)

    @property
    def floats_ratio(self) -> float:
        """The ratio of the floating-point tensors alone."""
        return self.floats_nbytes / max(1, self.held_floats_nbytes)


class ActivationFacts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step: forward, loss and backward, without the optimizer.

    Attributes:
        batch: samples per step; a graph counts as one.
        dtype: dtype that the model computes in.
        warm_steps: training steps before the measured one, without compression.
        saved: the saved tensors; None if they cannot be observed one by one, such as tensors that
            torch moves to the host.
        step_s: wall seconds, timed in turn with all other candidates.
        cosine: cosine similarity of each weight's gradient to the exact one, averaged over all weights.
        least_score: the smallest gradient similarity index of any weight.
        is_exact: whether all gradients equal the exact ones bit for bit.
    """

    batch: FromOne
    dtype: str
    warm_steps: Count
    saved: SavedBytes | None
    step_s: Percentiles
    cosine: Annotated[float, Meta(ge=-1, le=1)]
    least_score: Annotated[float, Meta(ge=0, le=1)]
    is_exact: bool

    def __post_init__(self) -> None:
        """Reject times of 0, because other figures are divided by them."""
        times = self.step_s
        require("step_s", min(times.p20, times.p50, times.p80) > 0, "above 0 seconds")
