"""What a result row says of a step whose saved tensors wait for backward."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from tersor.bench.core.row_checks import Count, FromOne, require
from tersor.bench.core.timing import Percentiles


class SavedBytes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tensors that the forward pass of one step saves for backward, each storage counted once.

    Parameters, buffers and the batch itself are held in any case and not among them; what the loss saves is
    not either.

    Attributes:
        nbytes: of all of them as autograd saves them.
        floats_nbytes: of the floating-point ones among them.
        held_nbytes: what is held in their place.
        held_floats_nbytes: what is held in place of the floating-point ones.
    """

    nbytes: Count
    floats_nbytes: Count
    held_nbytes: Count
    held_floats_nbytes: Count

    def __post_init__(self) -> None:
        """Refuse floats that are more than all tensors."""
        require("floats_nbytes", self.floats_nbytes <= self.nbytes, "at most nbytes")
        is_part = self.held_floats_nbytes <= self.held_nbytes
        require("held_floats_nbytes", is_part, "at most held_nbytes")

    @property
    def ratio(self) -> float:
        """All saved bytes over those held."""
        return self.nbytes / max(1, self.held_nbytes)

    @property
    def floats_ratio(self) -> float:
        """The same of floating-point tensors alone."""
        return self.floats_nbytes / max(1, self.held_floats_nbytes)


class ActivationFacts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step: forward, loss and backward, without the optimizer.

    Attributes:
        batch: samples of the step; a graph is one.
        dtype: that the model computes in.
        warm_steps: that the model was trained for before, without compression.
        saved: None where the tensors cannot be seen one by one, as those that torch moves to the host.
        step_s: wall seconds, in turn with all others.
        cosine: of the gradients of each weight, exact and not, its mean over all weights.
        least_score: the gradient similarity index of the weight where it is smallest.
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
        """Refuse what nothing can be divided by."""
        times = self.step_s
        require("step_s", min(times.p20, times.p50, times.p80) > 0, "above 0 seconds")
