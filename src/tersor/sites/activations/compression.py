"""The context object that compresses saved tensors over the steps of a training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import local
from typing import Any, Final, Self

import torch
from torch import nn

from tersor.codecs import Codec
from tersor.errors import SpecError
from tersor.policy import Similarity, gradient_similarity
from tersor.sites.activations.balance import (
    Gradients,
    Parts,
    PassFactors,
    Survey,
    checked_parts,
    surveyed_balance,
)
from tersor.sites.activations.estimate import NoiseEstimate
from tersor.sites.activations.probe import gradients_of
from tersor.sites.activations.quality import GivenRule, Quality, Rule
from tersor.sites.activations.region import Region
from tersor.sites.activations.report import ActivationReport, Ledger, Live
from tersor.sites.activations.state import State
from tersor.sites.activations.steering import Steering
from tersor.sites.activations.watching import untraced
from tersor.types import Bound

_LEAST_WINDOW_NBYTES: Final = 64 << 20
_WINDOWS_PER_STEP: Final = 32
"""Encoding a window takes the host of an H200 0.8 ms, whatever it holds, and almost three times its memory. This
number limits both."""
_EVERY: Final = 25
_MIN_NBYTES: Final = 4096
"""Smaller tensors are saved unchanged."""
_last: Any = None
"""The context entered last, of eager or of compiled code; referenced so that ``report()`` works after ``with compressed(...):``."""


class Compression:
    """A context for forward passes that compresses the tensors saved for backward.

    Make one per training, because it learns over the steps, and enter it around every forward pass, with the loss
    outside. At most one of ``target_score``, ``step``, ``bound`` and ``budget_bytes`` sets the precision; without
    them the codec's own options apply. Parameters, integers, masks, losses, softmax and statistics of norms stay
    exact. Entering it again inside, or without gradients (``torch.no_grad``), has no effect.

    Args:
        codec: ``"auto"`` (``rms``, or ``ans`` with a bound), another id, or a codec object.
        target_score: gradient similarity that the step or bound is steered to, between 0 and 1.
        step: step of ``rms``, in units of the root mean square of 256 values.
        bound: bound on the error of every value.
        budget_bytes: the step or bound is moved by factors of 2 to the finest whose held bytes fit.
        every: forward passes between two measurements of the score; 25 by default, only with ``target_score``.
        window_nbytes: bytes of tensors on a GPU that are encoded together; by default a 32nd of what the last step
            encoded, but at least 64 MiB.

    Raises:
        SpecError: two of the four are given, the codec has no such setting, or ``every`` is given without
            ``target_score``.
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
        """Validate the options."""
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
        self._thread_state = local()
        self._is_paused = self._was_entered = False
        self._probed: NoiseEstimate | None = None
        self._survey: Survey | None = None

    def __repr__(self) -> str:
        """Return the call that makes it, without what it learned."""
        given = [f"{name}={value!r}" for name, value in self._options.items() if value is not None]
        return f"{type(self).__name__}({', '.join(given)})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy the options and what was learned, without the step in progress."""
        return _with_state, (type(self), self._options, self._state())

    def _regions(self) -> list[Region | None]:
        """Return the regions that this thread has open; None stands for one without effect."""
        if not hasattr(self._thread_state, "regions"):
            self._thread_state.regions = []
        regions: list[Region | None] = self._thread_state.regions
        return regions

    @untraced
    def __enter__(self) -> Self:
        """Compress the tensors that this thread saves from here on, if it records gradients.

        Raises:
            RuntimeError: hooks of saved tensors are disabled here.
        """
        note_entered(self)
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

    def _balanced(self) -> PassFactors | None:
        if self._survey is not None:
            return self._survey.begin_pass()
        balance = self._steering.balance
        return None if balance is None else PassFactors(balance)

    @untraced
    def __exit__(self, *error: object) -> None:
        """Stop compressing, and encode the tensors that still wait."""
        region = self._regions().pop()
        if region is not None:
            region.__exit__(*error)
            self._steering.check_factors(region.balanced)
            self._steering.check_seen(self._ledger)

    def checked_rule(self, rule: object) -> Rule:
        """Validate a rule for a part of a model, and return it with a factor as a float and a codec's id as the codec.

        A factor multiplies the step or the bound; for a step, or a level that is steered, it is between 1/64 and 64.
        The product is limited to what the codec supports: a step below the finest one becomes the finest.

        Raises:
            SpecError: the rule is invalid, the codec has neither step nor bound to multiply, or the factor leads
                out of its range.
        """
        return self._quality.checked_rule(rule)

    @contextmanager
    def rule(self, rule: GivenRule) -> Iterator[None]:
        """Save the tensors of a part of the forward pass differently, inside the open context.

        Args:
            rule: a factor on the step or bound, a codec or its id, or None to save tensors exactly.

        Raises:
            SpecError: this thread has not entered the context, or see ``checked_rule``.
        """
        if not self._regions():
            raise SpecError(
                "a rule holds inside the open context only; enter that first, as in: with compression, compression.rule(None): ..."
            )
        with self.rule_if_open(rule):
            yield

    @contextmanager
    def rule_if_open(self, rule: GivenRule) -> Iterator[None]:
        """Do what ``rule`` does, or nothing if this thread has not entered the context."""
        checked = self.checked_rule(rule)
        regions = [region for region in self._regions() if region is not None]
        for region in regions:
            region.rules.append(checked)
        try:
            yield
        finally:
            for region in regions:
                region.rules.pop()

    def _begin_step(self) -> Ledger:
        """Learn from the last step, and return a ledger for the next."""
        self._steering.begin_pass(self._ledger)
        own_nbytes = max(_LEAST_WINDOW_NBYTES, self._ledger.coded_nbytes // _WINDOWS_PER_STEP)
        self._window_nbytes = self._given_window_nbytes or own_nbytes
        self._ledger = Ledger(self._live)
        return self._ledger

    def expect_probes(self) -> None:
        """Tell that ``probe`` will be called, so that a level that waits for the first one is worth no warning."""
        self._steering.is_probed = True

    def probe(self, model: nn.Module, forward_and_loss: Callable[[], torch.Tensor]) -> Similarity:
        """Measure the similarity of the gradients of one batch with and without compression, and steer by it.

        Runs ``forward_and_loss`` and its backward twice. The first pass, with this context switched off, takes as
        much memory as an uncompressed one, so use a part of a batch. Gradients, buffers and random number
        generators are left unchanged.

        Args:
            model: the model whose gradients are compared, those of this rank. Under ``DistributedDataParallel`` or
                ``fully_shard`` pass that module, and call this on every rank, between two steps.
            forward_and_loss: runs a forward pass in this context, as in training, and returns the loss.

        Raises:
            SpecError: the loss has no gradient for any weight, ``forward_and_loss`` does not enter the context, or
                the context is open already.
        """
        exact = self._exact_gradients(model, forward_and_loss)
        # as a checkpoint taken here would, so that a resumed training finds the same level
        self._steering.learn_from_pass(self._ledger)
        return self._measured(exact, model, forward_and_loss)

    def _measured(
        self,
        exact: Gradients,
        model: nn.Module,
        forward_and_loss: Callable[[], torch.Tensor],
    ) -> Similarity:
        """Return the similarity to exact gradients of those with this context, and steer by it."""
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
        """Measure how much each part of the network harms the gradients, and give each a factor on the common level.

        Compares the exact gradients of one batch with those of passes in which a single part is lossy, and sets the
        factors that hold the fewest bits at the same score (``balanced_factors``). Call it once the network has
        learned something, and repeat it occasionally. It ends as ``probe`` does: the score with these factors is in
        the report, and steers. Gradients, buffers and random number generators are left unchanged.

        Args:
            model: as in ``probe``.
            forward_and_loss: as in ``probe``.
            parts: ``"kind"`` for one factor per function that saves, such as ``batch_norm``; takes three passes, and
                one per function. ``"tensor"`` for one factor per saved tensor, which gains more, takes a pass for
                each, and requires a network that saves the same tensors in the same order in every pass.

        Returns:
            The factors, by part.

        Raises:
            SpecError: there is no common level, for instance with a fixed ``bound``; or as in ``probe``.
        """
        checked_parts(parts)
        if self._quality.level is None:
            raise SpecError(
                f"codec {self._quality.codec_id!r} has no level to balance here; use a step, target_score or budget_bytes, and "
                "no bound"
            )
        exact = self._exact_gradients(model, forward_and_loss)

        # see ``probe``
        self._steering.learn_from_pass(self._ledger)

        def lossy(survey: Survey) -> Gradients:
            self._survey = survey
            return self._lossy_gradients(model, forward_and_loss)

        try:
            balance = surveyed_balance(parts, exact, lossy)
        finally:
            self._survey = None
        self._steering.balance = balance
        self._measured(exact, model, forward_and_loss)
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
        """Return the gradients of one batch with this context switched on."""
        self._was_entered = False
        found = gradients_of(model, forward_and_loss)
        if not self._was_entered:
            raise SpecError(
                "forward_and_loss ran without this context, so that there is nothing to compare; let it enter the "
                "context around its forward pass"
            )
        return found

    def report(self) -> ActivationReport:
        """Return what the last step saved, and the state of the controller; any thread may call it during a step.

        A tensor whose encoded size has not arrived from the GPU yet counts with its original size.
        """
        ledger, steering = self._ledger, self._steering
        balance = steering.balance
        return ActivationReport(
            num_steps=steering.num_passes,
            codec=self._quality.codec_id,
            level=self._quality.level,
            forms=ledger.tallies(),
            num_duplicates=ledger.num_duplicates,
            duplicate_nbytes=ledger.duplicate_nbytes,
            live_nbytes=self._live.nbytes,
            similarity=steering.similarity,
            similarity_level=steering.similarity_level,
            is_predicted=steering.is_predicted,
            factors={} if balance is None else dict(balance.factors),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed training needs to continue unchanged, as values that JSON can hold.

        Call it between a backward pass and the next forward pass.
        """
        self._steering.learn_from_pass(self._ledger)
        return self._state()

    def _state(self) -> dict[str, Any]:
        return self._steering.state().to_dict(self._origin)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state returned by ``state_dict``.

        Raises:
            SpecError: it is not such a state, or belongs to other options.
        """
        self._steering.load(State.of(state, self._origin))


def _with_state(
    kind: type[Compression], options: dict[str, Any], state: dict[str, Any]
) -> Compression:
    """Make a compression that continues from a state; called by ``pickle`` and ``copy``."""
    made = kind(**options)
    made.load_state_dict(state)
    return made


def note_entered(context: Any) -> None:
    """Make a context the one that ``report()`` is about."""
    global _last  # noqa: PLW0603 - of the process, like the function
    _last = context


def report() -> ActivationReport:
    """Return the report of the compression entered last.

    Raises:
        SpecError: none has been entered.
        AttributeError: it was that of compiled code, which has no report.
    """
    if _last is None:
        raise SpecError("no compression was entered yet; call this after a forward pass under one")
    found: ActivationReport = _last.report()
    return found
