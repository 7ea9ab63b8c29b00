"""Steering of the level over a training, by what its passes hold, predict and measure."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from tersor.policy import BudgetController, ScoreController, Similarity
from tersor.sites.activations.balance import LevelFactors, PassFactors
from tersor.sites.activations.estimate import NoiseEstimate
from tersor.sites.activations.quality import Quality
from tersor.sites.activations.report import UNSEEN, Ledger
from tersor.sites.activations.state import State

_log = logging.getLogger("tersor")
_UNCALIBRATED: Final = 1.0
"""Ratio below, before the first probe."""
_CALIBRATIONS: Final = (0.05, 50.0)
"""Limits on the ratio of the loss that a probe measures to the predicted one."""


class Steering:
    """The state that a compression learns from its passes.

    Attributes:
        quality: holds the level.
        balance: factors on the level by part of the network; None if they were never measured.
        similarity: last measured or predicted similarity of gradients; None before the first.
        similarity_level: the level that ``similarity`` was found at.
        is_predicted: True if ``similarity`` is predicted, False if it comes from a probe.
        num_passes: number of forward passes so far.
        is_probed: True if the training calls ``probe`` now and then.
        estimate: collects the noise of the current pass; None if this pass is not measured.
    """

    def __init__(self, quality: Quality, every: int) -> None:
        """Start without a measurement; one of ``every`` passes predicts a score."""
        self.quality, self._every = quality, every
        self.balance: LevelFactors | None = None
        self.similarity: Similarity | None = None
        self.similarity_level: float | None = None
        self.is_predicted = False
        self._warned: set[str] = set()
        self.num_passes = 0
        self.is_probed = False
        self.estimate: NoiseEstimate | None = None
        self._calibration = _UNCALIBRATED
        self._is_learned = True

    def begin_pass(self, last: Ledger) -> None:
        """Learn from the last pass, given its ledger, and begin another."""
        self.learn_from_pass(last)
        if isinstance(self.quality.controller, ScoreController):
            is_due = self.num_passes % self._every == 0
            self.estimate = NoiseEstimate() if is_due else None
        self.num_passes += 1
        self._is_learned = False

    def learn_from_pass(self, ledger: Ledger) -> None:
        """Steer by the bytes held in a pass or the score that it predicts; repeated calls have no effect."""
        controller = self.quality.controller
        if isinstance(controller, BudgetController) and not self._is_learned:
            self._fit_budget(controller, ledger)
        if isinstance(controller, ScoreController):
            found = self.predicted()
            if self.estimate is not None and found is not None:
                self._learn(found, is_predicted=True, missed=self.estimate.missed)
            elif self.estimate is not None and self.similarity is None:
                self._warn(
                    "target_score",
                    "target_score steers nothing yet: the pass said nothing of the gradients of linear layers or convolutions; "
                    "call probe, which compares gradients, or leave target_score out",
                )
        self.estimate, self._is_learned = None, True

    def learn_from_probe(self, found: Similarity, predicted: Similarity | None) -> None:
        """Steer by the measured similarity, and calibrate later predictions by the one for the same pass."""
        if predicted is not None and predicted.score < 1:
            # the closed form misses errors that reach a gradient through later layers
            least, most = _CALIBRATIONS
            seen = (1 - found.score) / (1 - predicted.score)
            self._calibration = min(most, max(least, seen))
        self._learn(found, is_predicted=False)

    def predicted(self) -> Similarity | None:
        """Return the similarity predicted by the last measured pass, calibrated by the last probe."""
        found = None if self.estimate is None else self.estimate.similarity()
        if found is None:
            return None
        lost = (self._calibration * (1 - x) for x in found)
        return Similarity(*(max(0.0, 1 - x) for x in lost))

    def _learn(
        self, found: Similarity, *, is_predicted: bool, missed: Collection[str] = ()
    ) -> None:
        """Steer by a similarity; until a probe, no further than the initial level if a prediction ``missed`` functions.

        Of a small CNN with batch norms, 0.97 was predicted where exact gradients showed 0.6 (scratch run, one seed).
        """
        controller, level = self.quality.controller, self.quality.level
        self.similarity, self.similarity_level, self.is_predicted = found, level, is_predicted
        if not isinstance(controller, ScoreController) or level is None:
            return
        self.quality.level = controller.next_level(level, found.score)
        most = max(level, controller.levels.start)
        if missed and self._calibration == _UNCALIBRATED and self.quality.level > most:
            self.quality.level = most
            if not self.is_probed:
                self._warn(
                    "unprobed",
                    f"target_score keeps the level at {most:g}: predictions miss the errors of {', '.join(sorted(missed))}; "
                    "call probe every 50 steps or so (tersor train: --activation-probe-every 50), which measures the score "
                    "and lets the level grow",
                )

    def _fit_budget(self, controller: BudgetController, ledger: Ledger) -> None:
        level, held_nbytes = self.quality.level, ledger.held_nbytes
        if level is None:
            return
        if controller.is_hopeless(level, held_nbytes):
            self._warn(
                "budget",
                f"saved activations take {held_nbytes:,} bytes at {level:g}, the coarsest level of a budget, more than budget_bytes; use a "
                "smaller batch, or checkpoint some blocks",
            )
        self.quality.level = controller.next_level(level, held_nbytes, ledger.num_coded_values)

    def check_factors(self, balanced: PassFactors | None) -> None:
        """Warn, once, if a pass saved tensors and none of them has a factor."""
        if balanced is None or balanced.is_survey:
            return
        if balanced.num_tensors and not balanced.num_known:
            self._warn(
                "factors",
                "the factors of levels are of another model: none of them fits a tensor that this one saves; call balance again",
            )

    def check_seen(self, ledger: Ledger) -> None:
        """Warn, once, if most of what a pass saved stayed exact because no torch function was seen to save it."""
        unseen = ledger.forms.get(UNSEEN)
        if unseen is not None and 2 * unseen.original_nbytes > ledger.original_nbytes:
            self._warn(
                "unseen",
                "most of what this pass saved stays exact, as no torch function was seen to save it: compiled code takes "
                "activations.compiled instead of this context, and a torch.autograd.Function of your own saves exactly",
            )

    def _warn(self, kind: str, sentence: str) -> None:
        """Log a sentence, once for each kind."""
        if kind not in self._warned:
            self._warned.add(kind)
            _log.warning(sentence)

    def state(self) -> State:
        """Return a copy of what has been learned."""
        return State(
            num_steps=self.num_passes,
            level=self.quality.level,
            calibration=self._calibration,
            similarity=self.similarity,
            similarity_level=self.similarity_level,
            is_predicted=self.is_predicted,
            balance=self.balance,
        )

    def load(self, state: State) -> None:
        """Continue from a state."""
        self.num_passes, self._calibration = state.num_steps, state.calibration
        self.quality.level, self.balance = state.level, state.balance
        self.similarity, self.similarity_level = state.similarity, state.similarity_level
        self.is_predicted = state.is_predicted
        self.estimate, self._is_learned = None, True
