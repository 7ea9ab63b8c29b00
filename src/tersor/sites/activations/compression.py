"""The object that compresses saved tensors over the steps of a training."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from threading import local
from typing import Any, Final, Self

import torch
from torch import nn

from tersor.codecs import Codec
from tersor.errors import SpecError
from tersor.policy import BudgetController, ScoreController, Similarity, gradient_similarity
from tersor.sites.activations.balance import (
    Balance,
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
from tersor.sites.activations.watching import untraced
from tersor.types import Bound

_log = logging.getLogger("tersor")
_LEAST_WINDOW_NBYTES: Final = 64 << 20
_WINDOWS_PER_STEP: Final = 32
"""Encoding a window takes the host 0.8 ms of an H200's machine whatever it holds, and takes memory of almost three times its
size: so many bound both."""
_EVERY: Final = 25
_MIN_NBYTES: Final = 4096
"""Smaller tensors are kept as they are."""
_CALIBRATIONS: Final = (0.05, 50.0)
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
        self._every, self._given_window_nbytes = every or _EVERY, window_nbytes
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
        self._num_steps, self._calibration = 0, 1.0
        self._similarity: Similarity | None = None
        self._similarity_level: float | None = None
        self._is_predicted = self._is_paused = self._has_warned = self._was_entered = False
        self._is_learned = True
        self._estimate: NoiseEstimate | None = None
        self._probed: NoiseEstimate | None = None
        self._balance: Balance | None = None
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
            ledger, estimate = self._begin_step(), self._estimate
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
        return None if self._balance is None else Balanced(self._balance)

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
        self._learn_from_step()
        if isinstance(self._quality.controller, ScoreController):
            is_due = self._num_steps % self._every == 0
            self._estimate = NoiseEstimate() if is_due else None
        self._num_steps += 1
        own_nbytes = max(_LEAST_WINDOW_NBYTES, self._ledger.coded_nbytes // _WINDOWS_PER_STEP)
        self._window_nbytes = self._given_window_nbytes or own_nbytes
        self._ledger, self._is_learned = Ledger(self._live), False
        return self._ledger

    def _learn_from_step(self) -> None:
        """Steer by what the last step held or predicts, once; a state is taken after that too."""
        controller, level = self._quality.controller, self._quality.level
        if isinstance(controller, BudgetController) and level is not None and not self._is_learned:
            held_nbytes = self._ledger.held_nbytes
            if controller.is_hopeless(level, held_nbytes):
                self._warn(
                    f"saved activations take {held_nbytes:,} bytes at the coarsest level, more than budget_bytes; use a "
                    "smaller batch, or checkpoint some blocks"
                )
            values = self._ledger.num_coded_values
            self._quality.level = controller.next_level(level, held_nbytes, values)
        if isinstance(controller, ScoreController):
            found = self._predicted()
            self._learn(found)
            if found is None and self._estimate is not None and self._similarity is None:
                self._warn(
                    "target_score steers nothing yet: the pass said nothing of the gradients of linear layers or convolutions; "
                    "call probe, which compares gradients, or leave target_score out"
                )
        self._estimate, self._is_learned = None, True

    def _warn(self, sentence: str) -> None:
        """Log a sentence, once."""
        if not self._has_warned:
            self._has_warned = True
            _log.warning(sentence)

    def _predicted(self) -> Similarity | None:
        """Return the score that the last measured step predicts, corrected by the last probe."""
        found = None if self._estimate is None else self._estimate.similarity()
        if found is None:
            return None
        lost = (self._calibration * (1 - x) for x in found)
        return Similarity(*(max(0.0, 1 - x) for x in lost))

    def _learn(self, found: Similarity | None, *, is_predicted: bool = True) -> None:
        controller, level = self._quality.controller, self._quality.level
        if found is None:
            return
        self._similarity, self._is_predicted = found, is_predicted
        self._similarity_level = level
        if isinstance(controller, ScoreController) and level is not None:
            self._quality.level = controller.next_level(level, found.score)

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
        if predicted is not None and predicted.score < 1:
            # what the closed form does not see: errors that reach a gradient through later layers
            least, most = _CALIBRATIONS
            seen = (1 - found.score) / (1 - predicted.score)
            self._calibration = min(most, max(least, seen))
        self._learn(found, is_predicted=False)
        # of the level before, and less than what is known now
        self._estimate = None
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
            self._balance = surveyed_balance(parts, exact, lossy)
        finally:
            self._survey = None
        return dict(self._balance.factors)

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
        ledger = self._ledger
        return ActivationReport(
            num_steps=self._num_steps,
            codec=self._quality.codec_id,
            level=self._quality.level,
            forms={form: replace(tally) for form, tally in ledger.forms.items()},
            num_duplicates=ledger.num_duplicates,
            duplicate_nbytes=ledger.duplicate_nbytes,
            live_nbytes=self._live.nbytes,
            similarity=self._similarity,
            similarity_level=self._similarity_level,
            is_predicted=self._is_predicted,
            factors={} if self._balance is None else dict(self._balance.factors),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return what a training needs to go on as if it had not stopped, in values that JSON can hold.

        Taken between a backward pass and the next forward pass.
        """
        self._learn_from_step()
        return self._state()

    def _state(self) -> dict[str, Any]:
        state = State(
            num_steps=self._num_steps,
            level=self._quality.level,
            calibration=self._calibration,
            similarity=self._similarity,
            similarity_level=self._similarity_level,
            is_predicted=self._is_predicted,
            balance=self._balance,
        )
        return state.to_dict(self._origin)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Raises:
            SpecError: it is no state, or that of other options.
        """
        found = State.of(state, self._origin)
        self._num_steps, self._calibration = found.num_steps, found.calibration
        self._quality.level, self._balance = found.level, found.balance
        self._similarity, self._similarity_level = found.similarity, found.similarity_level
        self._is_predicted = found.is_predicted
        self._estimate, self._is_learned = None, True


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
