"""The choice of codec and bound for each table, forward and backward."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias

import torch

from tersor.codecs import create, get
from tersor.codecs.bounded import BoundedCodec
from tersor.codecs.codec import Codec
from tersor.codecs.costs import Costs, costs_on
from tersor.errors import SpecError
from tersor.kernels.runtime.op import backend_for
from tersor.policy import Choice, Decay, choose, estimate
from tersor.sites.embeddings.bounds import AdaptiveBounds
from tersor.sites.embeddings.classes import ClassBounds
from tersor.types import Bound

BoundsArgument: TypeAlias = (
    AdaptiveBounds | Mapping[int | str, Bound | float] | Bound | float | None
)
"""The type of the argument ``bounds`` of an exchange; see ``as_policy``."""
_DEFAULT: Final = "default"
_FINAL: Final = sys.maxsize
"""An iteration at which every decay has ended."""
_ANY_BOUND: Final = Bound.relative(0.03)
DEFAULT_GBIT_S: Final = 10.0
"""Default bandwidth by which codecs are chosen."""
_SAMPLE_ROWS: Final = 4096
"""Number of rows per table in the sample that codecs are tried on."""
CANDIDATES: Final = ("rows", "flat", "huffman", "raw")
"""Codecs that ``codec="auto"`` chooses from on a CPU, all within the bound. On CUDA, the rANS variants of ``rows`` and
``huffman`` replace them."""
_ON_CUDA: Final = {"huffman": "ans"}
"""Codecs to replace on CUDA. Device-dependent options are up to the codec itself (``Codec.options_on``)."""


def make_codec(spec: str | Codec, device: torch.device) -> Codec:
    """Return the codec with an id, in the variant that is fast on a device. A codec object is returned unchanged.

    Bounded codecs get a placeholder bound, which the bound policy replaces.

    Raises:
        UnknownCodecError: no codec has that id.
        SpecError: the codec only selects another one.
    """
    if isinstance(spec, Codec):
        codec = spec
    else:
        name = _ON_CUDA.get(spec, spec) if device.type == "cuda" else spec
        bound = {"bound": _ANY_BOUND} if get(name).takes_bound() else {}
        codec = create(name, device=device, **bound)
    if codec.is_selector:
        raise SpecError(f"codec {codec.codec_id!r} cannot be sent with; use codec='auto' by name")
    return codec


def make_backward(spec: str | Codec, device: torch.device) -> Codec:
    """Return the codec of gradients, given as an id or a codec object.

    Raises:
        UnknownCodecError: no codec has that id.
        SpecError: the codec only selects another one, or it needs a bound and is given as an id.
    """
    # make_codec rejects selectors
    if isinstance(spec, str) and get(spec).takes_bound() and not get(spec).is_selector:
        raise SpecError(
            f"backward={spec!r} does not say within which error; give a codec with a bound, as in "
            f"tersor.create({spec!r}, bound=...), or one of fixed rate such as 'half' or 'group8'"
        )
    return make_codec(spec, device)


def _check_bound_is_used(codec: str | Codec, bounds: BoundsArgument) -> None:
    """Raise ``SpecError`` if the default bounds would silently replace a codec's own bound."""
    if bounds is None and isinstance(codec, BoundedCodec):
        own = codec.bound
        raise SpecError(
            f"codec {codec.codec_id!r} has a bound of its own, but rows get their bounds from "
            f"bounds=; give bounds=Bound.{own.kind}({own.value}) to keep it, or "
            f"codec={codec.codec_id!r} for the default bounds"
        )


def as_policy(bounds: BoundsArgument, names: Sequence[str]) -> AdaptiveBounds:
    """Return the bound policy for an argument ``bounds``, with all tables identified by number.

    Args:
        bounds: a policy; one bound for all tables, where a number is a relative bound; a mapping of bounds by table
            number or name, with ``"default"`` for all other tables; or None for the default classes without decay.
        names: names of all tables, in order.

    Raises:
        SpecError: a bound is invalid, a table does not exist, or a table has no bound.
    """
    if isinstance(bounds, Mapping):
        return AdaptiveBounds(tables=_bounds_of_all(bounds, names), decay=Decay.off())
    if isinstance(bounds, Bound):
        return AdaptiveBounds(tables=dict.fromkeys(range(len(names)), bounds), decay=Decay.off())
    if isinstance(bounds, AdaptiveBounds):
        return bounds.numbered(names)
    if bounds is None:
        return AdaptiveBounds(decay=Decay.off())
    given: object = bounds
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not 0 < bounds < math.inf:
        raise SpecError(
            "bounds= takes a number above 0, a Bound, AdaptiveBounds or bounds by table; a relative "
            f"bound must be above 0 and finite, not {bounds!r}"
        )
    return AdaptiveBounds(bounds=ClassBounds(bounds, bounds, bounds), decay=Decay.off())


def _bounds_of_all(bounds: Mapping[int | str, Any], names: Sequence[str]) -> dict[int | str, Bound]:
    """Return the bound of every table, by number."""
    if _DEFAULT in names:
        raise SpecError(f"no table may be named {_DEFAULT!r}, which means all others in bounds=")
    given = dict(AdaptiveBounds(tables=bounds).tables)
    default = given.pop(_DEFAULT, None)
    found = dict(AdaptiveBounds(tables=given).numbered(names).tables)
    for number, name in enumerate(names):
        if number in found:
            continue
        if default is None:
            raise SpecError(
                f"bounds= has none for table {name!r}; give it one, or {_DEFAULT!r} for all others"
            )
        found[number] = default
    return found


def _warn_of_wide_bounds(policy: AdaptiveBounds, names: Sequence[str]) -> None:
    """Warn of the first table whose final relative bound allows errors as large as its whole range."""
    for number, name in enumerate(names):
        bound = policy.bound(number, _FINAL)
        if bound.kind == "relative" and bound.value >= 1:
            warnings.warn(
                f"a relative bound of {bound.value:g} lets every value of table {name} be off by its "
                f"whole range; 1 % of the range is 0.01",
                # skip this function, make_plan and its caller: report the user's own line
                stacklevel=4,
            )
            return


def _shown(codec: Codec) -> dict[str, Any]:
    """Return a codec's spec without its bound, which depends on the table and the iteration."""
    return {name: value for name, value in codec.to_config().items() if name != "bound"}


def make_plan(
    codec: str | Codec,
    bounds: BoundsArgument,
    names: Sequence[str],
    device: torch.device,
    *,
    bandwidth_gbit_s: float | None,
    bandwidth_gbps: float | None,
) -> CodecPlan:
    """Return the plan for the named tables. The arguments are those of ``Exchange``.

    Only functions that the user calls directly may call this: warnings refer to the caller's caller.

    Raises:
        SpecError: the arguments are invalid or contradict each other.
    """
    candidates = CANDIDATES if codec == "auto" else (codec,)
    made = tuple(make_codec(candidate, device) for candidate in candidates)
    _check_bound_is_used(codec, bounds)
    policy = as_policy(bounds, names)
    _warn_of_wide_bounds(policy, names)
    if bandwidth_gbps is not None:
        if bandwidth_gbit_s is not None:
            raise SpecError("give bandwidth_gbit_s alone: bandwidth_gbps is its deprecated form")
        bandwidth_gbit_s = 8 * bandwidth_gbps
        _warn_of_gigabytes(bandwidth_gbit_s, stacklevel=3)
    gbit_s = DEFAULT_GBIT_S if bandwidth_gbit_s is None else bandwidth_gbit_s
    has_costs = codec == "auto" and backend_for(device) == "gpu"
    costs = costs_on(device) if has_costs else None
    return CodecPlan(made, policy, bandwidth_gbit_s=gbit_s, costs=costs)


def _warn_of_gigabytes(gbit_s: float, stacklevel: int) -> None:
    warnings.warn(
        "bandwidth_gbps counts gigabytes per second and will be removed; give "
        f"bandwidth_gbit_s={gbit_s:g}, gigabits per second",
        DeprecationWarning,
        stacklevel=stacklevel + 1,
    )


@dataclass(slots=True)
class CodecPlan:
    """The codec of every table, fixed or chosen by measurement during training.

    Attributes:
        candidates: codecs to choose from; with a single one, there is no choice.
        bounds: bounds per table and iteration, which codecs without a bound ignore.
        bandwidth_gbit_s: bandwidth of the network in 10**9 bits per second, for which speed-ups are predicted.
        costs: costs of the GPU that encodes; None to measure speeds on each table, as on a CPU.
        every: approximate number of iterations between two measurements of the same table.
        choices: the last choice per table.
    """

    candidates: tuple[Codec, ...]
    bounds: AdaptiveBounds
    # keyword-only, because bandwidth_gbit_s and the deprecated bandwidth_gbps have different units
    _: KW_ONLY
    bandwidth_gbit_s: float = DEFAULT_GBIT_S
    costs: Costs | None = None
    every: int = 1000
    choices: dict[int, Choice] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Reject a plan without codecs, or with an invalid interval or bandwidth."""
        if not self.candidates:
            raise SpecError("an exchange needs at least one codec")
        if self.every < 1:
            raise SpecError(f"codecs are looked at every 1 or more iterations, not {self.every}")
        if not 0 < self.bandwidth_gbit_s < math.inf:
            raise SpecError(
                f"the bandwidth must be above 0 Gbit/s and finite, not {self.bandwidth_gbit_s}"
            )

    @property
    def bandwidth_gbps(self) -> float:
        """Deprecated: the bandwidth in 10**9 bytes per second."""
        _warn_of_gigabytes(self.bandwidth_gbit_s, stacklevel=2)
        return self.bandwidth_gbit_s / 8

    def terms(self) -> dict[str, object]:
        """Return the arguments that ranks must agree on, in a form that is equal for equal arguments."""
        return {
            "codec": [_shown(codec) for codec in self.candidates],
            "bounds": self.bounds.terms(),
            "bandwidth_gbit_s": float(self.bandwidth_gbit_s),
            "every": self.every,
        }

    def codec(self, table: int, iteration: int) -> Codec:
        """Return the codec of a table, with the bound for an iteration."""
        found = self.choices.get(table)
        return self._bounded(self.candidates[found.best_index if found else 0], table, iteration)

    def _bounded(self, codec: Codec, table: int, iteration: int) -> Codec:
        if not isinstance(codec, BoundedCodec):
            return codec
        return replace(codec, bound=self.bounds.bound(table, iteration))

    def remeasure_if_due(
        self, tables: Sequence[int], rows: Sequence[torch.Tensor], iteration: int
    ) -> None:
        """Try the codecs on the tables that are due for measurement.

        The first iteration measures speeds and ratios of all tables. Later iterations measure the ratios of one table
        at a time, so that each is measured about once every ``every`` iterations at negligible cost. Speeds are not
        measured again, so that a run resumed with ``load_state_dict`` makes the same choices as an uninterrupted one.
        """
        if len(self.candidates) < 2 or not tables:
            return
        if self.choices:
            gap = max(1, self.every // len(tables))
            if iteration % gap:
                return
            due = [(iteration // gap) % len(tables)]
        else:
            due = list(range(len(tables)))
        for k in due:
            sample, table = rows[k].detach()[:_SAMPLE_ROWS], tables[k]
            if not sample.numel():
                continue
            codecs = [self._bounded(codec, table, iteration) for codec in self.candidates]
            known = self.choices.get(table)
            self.choices[table] = (
                self._first_choice(sample, codecs, rows[k].nbytes, len(tables))
                if known is None
                else known.resized(sample, codecs)
            )

    def _first_choice(
        self, sample: torch.Tensor, codecs: Sequence[Codec], nbytes: int, num_tables: int
    ) -> Choice:
        """Choose a codec for a table of ``nbytes`` bytes per exchange, one of ``num_tables`` on this rank.

        A GPU encodes all tables of one codec in a single call, so they share its fixed cost.
        """
        if self.costs is None:
            return choose(sample, codecs, self.bandwidth_gbit_s)
        trial = partial(estimate, costs=self.costs, nbytes=nbytes, num_sharing=num_tables)
        return choose(sample, codecs, self.bandwidth_gbit_s, trial)

    def state_dict(self, iteration: int) -> dict[str, Any]:
        """Return the iteration, the decay and the choices as JSON-ready values."""
        return {
            "iteration": iteration,
            "decay": asdict(self.bounds.decay),
            "codecs": [codec.codec_id for codec in self.candidates],
            "choices": {str(table): choice.to_config() for table, choice in self.choices.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any], tables: Collection[int]) -> int:
        """Restore the decay and the choices of a saved state, and return its iteration.

        ``tables`` are the tables of this rank.

        Raises:
            SpecError: ``state`` is malformed, or belongs to a plan with other codecs or tables. The plan is then
                unchanged.
        """
        try:
            iteration = state["iteration"]
            codecs, decay = list(state["codecs"]), state["decay"]
            choices = {int(table): config for table, config in state["choices"].items()}
            # a state saved with one bound for all tables may have no decay
            bounds = self.bounds
            if decay is not None:
                bounds = replace(bounds, decay=Decay(**decay))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SpecError("this is no saved state of such an exchange") from error
        if type(iteration) is not int or iteration < 0:
            raise SpecError(f"a saved iteration is a number from 0, not {iteration!r}")
        own = [codec.codec_id for codec in self.candidates]
        if codecs != own:
            raise SpecError(
                f"the saved state is of an exchange with codec {' or '.join(map(str, codecs))}, this "
                f"one has {' or '.join(own)}; make it with the same codec="
            )
        others = sorted(choices.keys() - set(tables))
        if others:
            raise SpecError(
                f"the saved state is of table {others[0]}, which this rank does not own; every rank "
                "saves its own state and loads it"
            )
        self.choices = {
            table: Choice.from_config(config, self.candidates, self.bandwidth_gbit_s)
            for table, config in choices.items()
        }
        self.bounds = bounds
        return iteration
