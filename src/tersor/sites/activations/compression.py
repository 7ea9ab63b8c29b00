"""The object that compresses saved tensors over the steps of a training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from threading import local
from typing import Any, Final, Self

import torch
from torch import nn

from tersor.codecs import Codec
from tersor.errors import SpecError
from tersor.policy import Similarity, gradient_similarity
from tersor.sites.activations.balance import (
    Balanced,
    Gradients,
    Parts,
    Survey,
    checked_parts,
    surveyed_balance,
)
from tersor.sites.activations.estimate import NoiseEstimate
from tersor.sites.activations.probe import gradients_of
from tersor.sites.activations.quality import Quality, Rule
from tersor.sites.activations.region import Region
from tersor.sites.activations.report import ActivationReport, Ledger, Live
from tersor.sites.activations.state import State
from tersor.sites.activations.steering import Steering
from tersor.sites.activations.watching import untraced
from tersor.types import Bound

_LEAST_WINDOW_NBYTES: Final = 64 << 20
_WINDOWS_PER_STEP: Final = 32
"""Encoding a window takes the host 0.8 ms of an H200's machine whatever it holds, and takes memory of almost three times its
size: so many bound both."""
_EVERY: Final = 25
_MIN_NBYTES: Final = 4096
"""Smaller tensors are kept as they are."""
_last: Compression | None = None
"""What was entered last; held, so that ``with compressed(...):`` leaves something to report."""


class Compression:
    """A context for forward passes, in which tensors saved for backward shrink.

    Entered around the forward pass of every step, the loss outside; made once, because it learns. Say how
    exactly tensors are saved by one of ``target_score``, ``step``, ``bound`` and ``budget_bytes``; without any the codec's own
    options count. Parameters, integers, masks, losses, softmax and statistics of norms stay exact.

    Args:
        codec: ``"auto"`` (``rms``, or ``ans`` with a bound), another id, or a codec.
        target_score: similarity of gradients that the step or bound of the codec is steered to, from 0 to 1.
        step: of ``rms``, in units of the root mean square of 256 values.
        bound: of the error of every value.
        budget_bytes: the codec gets coarser until what is held for backward fits.
        every: forward passes from one measurement of the score to the next, with ``target_score`` alone; 25 by default.
        window_nbytes: tensors on a GPU that wait to be encoded together; by default a 32nd of what the last step
            encoded, and 64 MiB at least.

    Raises:
        SpecError: two of the four were given, or the codec cannot be set so, or ``every`` has nothing to measure.
        UnknownCodecError: there is no such codec.

    Example:
        >>> from tersor import Bound
        >>> model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        >>> compression = Compression(bound=Bound.relative(0.01))
        >>> with compression:
        ...     out = model(torch.randn(256, 64))
        >>> out.square().mean().backward()
        >>> compression.report().ratio > 2
        True
    """

    def __init__(
        self,
        codec: str | Codec = "auto",
        *,
        target_score: float | None = None,
        step: float | None = None,
        bound: Bound | None = None,
        budget_bytes: int | None = None,
        every: int | None = None,
        window_nbytes: int | None = None,
    ) -> None:
        """Check the options; nothing is compressed yet."""
        for name, value in (("every", every), ("window_nbytes", window_nbytes)):
            if value is not None and (type(value) is not int or value < 1):
                raise SpecError(f"{name} must be a whole number above 0, not {value!r}")
        if every is not None and target_score is None:
            raise SpecError("every is of target_score; give that, or leave every out")
        self._quality = Quality(
            codec, target_score=target_score, step=step, bound=bound, budget_bytes=budget_bytes
        )
        self._steering = Steering(self._quality, every or _EVERY)
        self._given_window_nbytes = window_nbytes
        self._options = {
            "codec": codec, "target_score": target_score, "step": step, "bound": bound,
            "budget_bytes": budget_bytes, "every": every, "window_nbytes": window_nbytes,
        }  # fmt: skip
        self._origin = {
            "codec": self._quality.codec_id,
            "target_score": target_score,
            "budget_bytes": budget_bytes,
            "step": step,
            "bound": None if bound is None else bound.to_config(),
        }
        self._window_nbytes = window_nbytes or _LEAST_WINDOW_NBYTES
        self._live = Live()
        self._ledger = Ledger(self._live)
        self._own = local()
        self._is_paused = self._was_entered = False
        self._probed: NoiseEstimate | None = None
        self._survey: Survey | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a copy have the same options and go on from the same level; the step that is going on stays with this one."""
        return _with_state, (type(self), self._options, self._state())

    def _regions(self) -> list[Region | None]:
        """Return the contexts that this thread has open; None for one that does nothing."""
        if not hasattr(self._own, "regions"):
            self._own.regions = []
        regions: list[Region | None] = self._own.regions
        return regions

    @untraced
    def __enter__(self) -> Self:
        """Compress what this thread saves from now on, if it records gradients.

        Raises:
            RuntimeError: hooks of saved tensors are disabled here.
        """
        global _last  # noqa: PLW0603 - what ``report`` without a manager is about
        _last = self
        regions = self._regions()
        if self._is_paused or not torch.is_grad_enabled() or regions:
            regions.append(None)
            return self
        self._was_entered = True
        ledger, estimate = Ledger(self._live), self._probed
        if estimate is None and self._survey is None:
            ledger, estimate = self._begin_step(), self._steering.estimate
        region = Region(
            self._quality,
            ledger,
            window_nbytes=self._window_nbytes,
            min_nbytes=_MIN_NBYTES,
            observer=estimate,
            balanced=self._balanced(),
        )
        region.__enter__()
        regions.append(region)
        return self

    def _balanced(self) -> Balanced | None:
        if self._survey is not None:
            return self._survey.begin_pass()
        balance = self._steering.balance
        return None if balance is None else Balanced(balance)

    @untraced
    def __exit__(self, *error: object) -> None:
        """Leave saved tensors alone again."""
        region = self._regions().pop()
        if region is not None:
            region.__exit__(*error)

    def checked_rule(self, rule: object) -> Rule:
        """Return a rule for a part of a model, a factor as a float.

        A factor multiplies a step, within 1/64 and 64, or a bound. What it gives is kept within what the codec can do:
        a step below the finest one is the finest one.

        Raises:
            SpecError: it is no rule, the codec of this compression has neither step nor bound to multiply, or the
                factor would lead out of what it can do.
        """
        return self._quality.checked_rule(rule)

    @contextmanager
    def rule(self, rule: Rule) -> Iterator[None]:
        """Save tensors in another way inside an open context.

        Args:
            rule: a factor of step or bound, a codec, or None to keep tensors as they are.

        Raises:
            SpecError: see ``checked_rule``.
        """
        rule = self.checked_rule(rule)
        regions = [region for region in self._regions() if region is not None]
        for region in regions:
            region.rules.append(rule)
        try:
            yield
        finally:
            for region in regions:
                region.rules.pop()

    def _begin_step(self) -> Ledger:
        """Learn from the last step, and return the ledger of a new one."""
        self._steering.begin_pass(self._ledger)
        own_nbytes = max(_LEAST_WINDOW_NBYTES, self._ledger.coded_nbytes // _WINDOWS_PER_STEP)
        self._window_nbytes = self._given_window_nbytes or own_nbytes
        self._ledger = Ledger(self._live)
        return self._ledger

    def probe(self, model: nn.Module, forward_and_loss: Callable[[], torch.Tensor]) -> Similarity:
        """Compare the gradients of one batch with and without compression, and steer by what is found.

        Runs ``forward_and_loss`` twice, forward and backward, once with this context switched off: that pass
        takes the memory of an uncompressed one, so give it a part of a batch. Gradients, buffers and random
        numbers are afterwards as they were.

        Args:
            model: whose parameters are compared, by the gradients of this rank; ``DistributedDataParallel``
                itself, or a module of ``fully_shard``, where every rank calls this, between two steps.
            forward_and_loss: a forward pass in this context, as in training, and its loss, which is returned.

        Raises:
            SpecError: the loss has no gradient for any weight, or ``forward_and_loss`` does not enter the context.
        """
        exact = self._exact_gradients(model, forward_and_loss)
        self._probed = NoiseEstimate()
        try:
            lossy = self._lossy_gradients(model, forward_and_loss)
            predicted = self._probed.similarity()
        finally:
            self._probed = None
        common = [name for name in exact if name in lossy]
        found = gradient_similarity([exact[k] for k in common], [lossy[k] for k in common])
        self._steering.learn_from_probe(found, predicted)
        return found

    def balance(
        self,
        model: nn.Module,
        forward_and_loss: Callable[[], torch.Tensor],
        *,
        parts: Parts = "kind",
    ) -> dict[str, float]:
        """Give each part of the network the level at which one more bit per value gains it as much as any other.

        Compares the gradients of one batch without compression with those of passes in which a single part is lossy,
        and sets factors of the common step or bound (``balanced_factors``). Errors of different parts add up, so the score
        stays what it is at the same level, and less memory is held. Call it when the network has learned something, and again
        now and then; it leaves no trace, as ``probe`` does.

        Args:
            model: as in ``probe``.
            forward_and_loss: as in ``probe``.
            parts: ``"kind"`` for one factor per function that saves, such as ``batch_norm``, which takes a pass for each
                and two more; ``"tensor"`` for one per saved tensor, which gains more, for networks that save the same tensors
                in the same order in each pass.

        Returns:
            The factors, by part.

        Raises:
            SpecError: there is no common level, as with a ``bound``, which is promised for every value; or as in ``probe``.
        """
        checked_parts(parts)
        if self._quality.level is None:
            raise SpecError(
                f"codec {self._quality.codec_id!r} has no level to balance here; use a step, target_score or budget_bytes, and "
                "no bound"
            )
        exact = self._exact_gradients(model, forward_and_loss)

        def lossy(survey: Survey) -> Gradients:
            self._survey = survey
            return self._lossy_gradients(model, forward_and_loss)

        try:
            balance = surveyed_balance(parts, exact, lossy)
        finally:
            self._survey = None
        self._steering.balance = balance
        return dict(balance.factors)

    def _exact_gradients(
        self, model: nn.Module, forward_and_loss: Callable[[], torch.Tensor]
    ) -> Gradients:
        """Return the gradients of one batch with this context switched off."""
        if self._regions():
            raise SpecError(
                "call probe and balance outside of the context; forward_and_loss enters it itself"
            )
        self._is_paused = True
        try:
            return gradients_of(model, forward_and_loss)
        finally:
            self._is_paused = False

    def _lossy_gradients(
        self, model: nn.Module, forward_and_loss: Callable[[], torch.Tensor]
    ) -> Gradients:
        """Return those with it."""
        self._was_entered = False
        found = gradients_of(model, forward_and_loss)
        if not self._was_entered:
            raise SpecError(
                "forward_and_loss ran without this context, so that there is nothing to compare; let it enter the "
                "context around its forward pass"
            )
        return found

    def report(self) -> ActivationReport:
        """Return what the last step saved, and where the controller is.

        Sizes that a GPU has not told yet count as those of the tensors themselves.
        """
        ledger, steering = self._ledger, self._steering
        balance = steering.balance
        return ActivationReport(
            num_steps=steering.num_passes,
            codec=self._quality.codec_id,
            level=self._quality.level,
            forms={form: replace(tally) for form, tally in ledger.forms.items()},
            num_duplicates=ledger.num_duplicates,
            duplicate_nbytes=ledger.duplicate_nbytes,
            live_nbytes=self._live.nbytes,
            similarity=steering.similarity,
            similarity_level=steering.similarity_level,
            is_predicted=steering.is_predicted,
            factors={} if balance is None else dict(balance.factors),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what a training needs to go on as if it had not stopped, in values that JSON can hold.

        Taken between a backward pass and the next forward pass.
        """
        self._steering.learn_from_pass(self._ledger)
        return self._state()

    def _state(self) -> dict[str, Any]:
        return self._steering.state().to_dict(self._origin)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Raises:
            SpecError: it is no state, or that of other options.
        """
        self._steering.load(State.of(state, self._origin))


def _with_state(
    kind: type[Compression], options: dict[str, Any], state: dict[str, Any]
) -> Compression:
    """Return a compression that goes on from a state; what pickle and ``copy`` call."""
    made = kind(**options)
    made.load_state_dict(state)
    return made


def report() -> ActivationReport:
    """Return the report of the compression that was entered last.

    Raises:
        SpecError: there is none.
    """
    if _last is None:
        raise SpecError("no compression was entered yet; call this after a forward pass under one")
    return _last.report()
