"""The precision of saved tensors: a codec and its level, set by the user, a score or a budget."""

from __future__ import annotations

import math
import reprlib
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from numbers import Real
from typing import Any, Final

from torch import nn

from tersor.codecs import Codec, registry
from tersor.errors import SpecError, UnknownCodecError
from tersor.kernels.group.rms.layout import LEAST_STEP, MOST_STEP
from tersor.policy import BudgetController, LevelRange, ScoreController
from tersor.types import Bound

AUTO_CODEC: Final = "rms"
"""Meaning of ``codec="auto"`` without a bound."""
AUTO_BOUNDED: Final = "ans"
"""Meaning of ``codec="auto"`` with a bound."""

_STEPS: Final = LevelRange(start=0.5, finest=LEAST_STEP, coarsest=2.0)
_BOUNDS: Final = LevelRange(start=0.03, finest=1e-4, coarsest=0.5)
_MOST_FACTOR: Final = 64.0
"""Largest factor, and inverse of the smallest, on a level that is a step or is steered. The coarsest step is 63.5
times the finest."""

Rule = float | Codec | None
"""A factor on the level, a codec that replaces the common one, or None for exact."""
GivenRule = Rule | str
"""A rule as a user gives it: also the id of a codec."""
_RULES: Final = "a rule is a factor above 0, a codec or its id, or None for exact"


class Quality:
    """A codec as a function of one level (larger is coarser), and the controller of that level.

    Attributes:
        level: the step of a codec that has one, or the relative bound of a steered codec that takes one; else None.
        controller: controller of the level; None if it is constant.
    """

    def __init__(
        self,
        codec: str | Codec = "auto",
        *,
        target_score: float | None = None,
        step: float | None = None,
        bound: Bound | None = None,
        budget_bytes: int | None = None,
    ) -> None:
        """Take a codec and at most one of the four settings of its precision; see ``Compression``.

        Raises:
            SpecError: several are given, or the codec has no such setting.
            UnknownCodecError: there is no such codec.
        """
        given = {
            "target_score": target_score, "step": step, "bound": bound, "budget_bytes": budget_bytes,
        }  # fmt: skip
        named = [name for name, value in given.items() if value is not None]
        if len(named) > 1:
            raise SpecError(f"give one of {', '.join(given)}, not {' and '.join(named)}")
        check_codec(codec, "compressed")
        self._is_steered = target_score is not None or budget_bytes is not None
        self._prototype = _prototype(codec, step, bound)
        self._option = self._leveled_option(named)
        self._levels = levels = _STEPS if self._option == "step" else _BOUNDS
        self.level: float | None = None
        if self._option is not None:
            own: float = getattr(self._prototype, "step", levels.start)
            self.level = levels.start if self._is_steered else own
        self.controller: ScoreController | BudgetController | None = None
        if target_score is not None:
            self.controller = ScoreController(target=target_score, levels=levels)
        if budget_bytes is not None:
            self.controller = BudgetController(budget_nbytes=budget_bytes, levels=levels)
        self._made: dict[Any, Codec] = {}

    def _leveled_option(self, named: Sequence[str]) -> str | None:
        """Return the codec option that the level sets: ``step``, ``bound`` or None."""
        codec = self._prototype
        names = [f.name for f in fields(codec)]
        if "step" in names:
            return "step"
        if codec.takes_bound() and self._is_steered:
            return "bound"
        if self._is_steered:
            raise SpecError(
                f"codec {codec.codec_id!r} has neither step nor bound to steer; leave {named[0]} out, or "
                f"take codec={AUTO_CODEC!r}"
            )
        return None

    def checked_rule(self, rule: object) -> Rule:
        """Validate a rule, and return it with a factor as a float and a codec's id as the codec.

        Raises:
            SpecError: the rule is invalid, or its factor leads outside what the codec supports.
        """
        if rule is None:
            return None
        if isinstance(rule, Codec | str):
            return _checked_selector(_named(rule) if isinstance(rule, str) else rule)
        factor = _number(rule)
        if not 0 < factor < math.inf:
            raise SpecError(f"{_RULES}, not {in_words(rule)}")
        if factor != 1.0:
            self._check_factor(factor)
        return factor

    def _check_factor(self, factor: float) -> None:
        codec = self._prototype
        if self._option is None and not codec.takes_bound():
            raise SpecError(
                f"codec {codec.codec_id!r} has neither step nor bound for a factor of {factor:g}; give the part "
                "a codec, or None for exact"
            )
        least, most = 1 / _MOST_FACTOR, _MOST_FACTOR
        if self._option == "step" and not self._is_steered:
            most = min(most, MOST_STEP / (self.level or 1.0))
        elif not self._is_steered:
            least, most = _bound_factors(codec.own_bound())
        if factor < least:
            raise SpecError(
                f"the factor of a rule is at least {least:g} here, not {factor:g}; give None for exact"
            )
        if factor > most:
            raise SpecError(
                f"the factor of a rule is at most {most:g} here, not {factor:g}; codec {codec.codec_id!r} gets no coarser"
            )

    @property
    def codec_id(self) -> str:
        """Id of the codec."""
        return self._prototype.codec_id

    def clipped_factor(self, factor: float) -> float:
        """Return a factor of a balance, reduced if it would exceed the coarsest level of a controller."""
        if self.level is None or factor <= 1.0:
            return factor
        return min(factor, max(1.0, self._levels.coarsest / self.level))

    @property
    def keeps_zeros(self) -> bool:
        """True if outputs of ReLU keep zeros and signs at every level; within a bound small ones become zero."""
        return self._option == "step"

    def codec(self, *, has_zeros: bool = False, factor: float = 1.0) -> Codec:
        """Return the codec at a multiple of the level, limited to what the codec supports.

        Args:
            has_zeros: True if zeros among the values must stay zeros, like those behind a ReLU.
            factor: factor on the level; 0.5 is twice as fine.
        """
        key = (self.level, has_zeros, factor)
        # another thread may clear the dictionary at any point
        found = self._made.get(key)
        if found is None:
            if len(self._made) > 64:
                self._made.clear()
            found = self._made[key] = self._at(has_zeros, factor)
        return found

    def _at(self, has_zeros: bool, factor: float) -> Codec:
        options: dict[str, Any] = {}
        if self._option == "step" and self.level is not None:
            options["step"] = min(MOST_STEP, max(LEAST_STEP, self.level * factor))
        elif self._option == "bound" and self.level is not None:
            options["bound"] = Bound.relative(min(1.0, self.level * factor))
        elif self._prototype.takes_bound() and factor != 1.0:
            options["bound"] = _scaled(self._prototype.own_bound(), factor)
        if has_zeros and any(f.name == "zeros" for f in fields(self._prototype)):
            options["zeros"] = True
        return replace(self._prototype, **options) if options else self._prototype


def check_codec(codec: object, context: str) -> None:
    """Require a codec or an id of one; a model is a likely mistake here.

    Raises:
        SpecError: it is neither; the message names the ``context`` function.
    """
    if isinstance(codec, str | Codec):
        return
    if isinstance(codec, nn.Module):
        way_out = "use activations.wrap(model, ...), or e" if context == "compressed" else "e"
        raise SpecError(
            f"activations.{context} takes a codec, not a model; {way_out}nter the context around the forward "
            f"pass, as in: with activations.{context}(...): out = model(x)"
        )
    raise SpecError(
        f"a codec is an id or what tersor.create makes of one, not {in_words(codec)}; see the command tersor codecs"
    )


def in_words(given: object) -> str:
    """Describe an argument briefly for an error message, whatever the length of its ``repr``.

    Example:
        >>> in_words(0.5), in_words(int), in_words([1, 2])
        ('0.5', 'the class int', 'a list')
    """
    if isinstance(given, type):
        return f"the class {given.__name__}"
    if given is None or isinstance(given, str | int | float):
        return reprlib.repr(given)
    return f"a {type(given).__name__}"


def _prototype(codec: str | Codec, step: float | None, bound: Bound | None) -> Codec:
    if isinstance(codec, Codec):
        if bound is not None or step is not None:
            raise SpecError("a codec object has its own options; leave step and bound out")
        chosen = codec
    else:
        if codec == "auto":
            codec = AUTO_CODEC if bound is None else AUTO_BOUNDED
        kind = registry.get(codec)
        has_step = any(f.name == "step" for f in fields(kind))
        if step is not None and not has_step:
            raise SpecError(f"codec {codec!r} has no step; codec={AUTO_CODEC!r} has")
        options: dict[str, Any] = {"step": step} if step is not None else {}
        if kind.takes_bound():
            options["bound"] = bound if bound is not None else Bound.relative(_BOUNDS.start)
        elif bound is not None:
            instead = "takes a step, not a bound" if has_step else "takes no bound; leave it out"
            raise SpecError(f"codec {codec!r} {instead}")
        chosen = registry.create(codec, **options)
    return _checked_selector(chosen)


def _named(codec_id: str) -> Codec:
    """Return the codec with an id and its usual options, for a rule.

    Raises:
        SpecError: there is none, or it needs a bound.
    """
    try:
        kind = registry.get(codec_id)
    except UnknownCodecError as error:
        raise SpecError(f"{_RULES}, not {in_words(codec_id)}: {error}") from error
    if kind.takes_bound() and not kind.is_selector:
        raise SpecError(
            f"codec {codec_id!r} needs a bound: give the rule tersor.create({codec_id!r}, bound=tersor.Bound.relative(0.01))"
        )
    return registry.create(
        codec_id, **({"bound": Bound.relative(0.01)} if kind.takes_bound() else {})
    )


def _checked_selector(codec: Codec) -> Codec:
    if codec.is_selector:
        raise SpecError(f"codec {codec.codec_id!r} chooses per tensor, which takes time; name one")
    return codec


def _number(given: object) -> float:
    """Return a real number as a float; NaN for anything else, and for numbers beyond a float's range."""
    if isinstance(given, bool) or not isinstance(given, Real):
        return math.nan
    try:
        return float(given)
    except OverflowError:
        return math.nan


def _bound_factors(bound: Bound) -> tuple[float, float]:
    """Return the least and the largest factor on a bound; the product of a relative one is at most 1."""
    if not bound.value:
        return 0.0, math.inf
    coarsest = max(1.0, bound.value) if bound.kind == "relative" else sys.float_info.max
    return sys.float_info.min / bound.value, coarsest / bound.value


def _scaled(bound: Bound, factor: float) -> Bound:
    config = {kind: value * factor for kind, value in bound.to_config().items()}
    return Bound.from_config(config)
