"""Which codec and bound a table's chunks get, forward and backward."""

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
"""What ``bounds=`` of an exchange takes; see ``as_policy``."""
_DEFAULT: Final = "default"
_FINAL: Final = sys.maxsize
"""An iteration at which every decay has ended."""
_ANY_BOUND: Final = Bound.relative(0.03)
DEFAULT_GBIT_S: Final = 10.0
"""Bandwidth that codecs are chosen for unless another is given."""
_SAMPLE_ROWS: Final = 4096
"""Rows per table that codecs are tried on."""
CANDIDATES: Final = ("rows", "flat", "huffman", "raw")
"""Codecs that ``codec="auto"`` chooses from on a CPU, all within the bound; ``rows`` and ``huffman``
give way to their rANS forms on CUDA."""
_ON_CUDA: Final = {"huffman": "ans"}
"""Codecs whose place others take on CUDA; options of a codec are its own matter there."""


def make_codec(spec: str | Codec, device: torch.device) -> Codec:
    """Return a codec by its id, in the form that is fast on a device; a codec stays as it is.

    Bounded codecs get a bound that means nothing: the policy of the rows replaces it.

    Raises:
        UnknownCodecError: no codec has that id.
        SpecError: the codec only chooses another one.
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
    """Return the codec of gradients by its id, or as it is.

    Raises:
        UnknownCodecError: no codec has that id.
        SpecError: the codec only chooses another one, or nobody says within which bound.
    """
    # what only chooses another codec is refused below
    if isinstance(spec, str) and get(spec).takes_bound() and not get(spec).is_selector:
        raise SpecError(
            f"backward={spec!r} does not say within which error; give a codec with a bound, as in "
            f"tersor.create({spec!r}, bound=...), or one of fixed rate such as 'half' or 'group8'"
        )
    return make_codec(spec, device)


def _check_bound_is_used(codec: str | Codec, bounds: BoundsArgument) -> None:
    """Raise ``SpecError`` for a codec whose own bound the default ones would silently replace."""
    if bounds is None and isinstance(codec, BoundedCodec):
        own = codec.bound
        raise SpecError(
            f"codec {codec.codec_id!r} has a bound of its own, but rows get their bounds from "
            f"bounds=; give bounds=Bound.{own.kind}({own.value}) to keep it, or "
            f"codec={codec.codec_id!r} for the default bounds"
        )


def as_policy(bounds: BoundsArgument, names: Sequence[str]) -> AdaptiveBounds:
    """Return what gives each table its bound, with all tables named by number.

    Args:
        bounds: a policy; one bound for all tables, a relative one as a number; bounds by table, each
            named by number or name, with ``"default"`` for all others; or None for the default
            classes without decay.
        names: of all tables, in order.

    Raises:
        SpecError: there is no such table, or one without a bound.
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
    """Return the bound of every table by its number."""
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
    """Warn where a bound lets every value of a table be off by its whole range."""
    for number, name in enumerate(names):
        bound = policy.bound(number, _FINAL)
        if bound.kind == "relative" and bound.value >= 1:
            warnings.warn(
                f"a relative bound of {bound.value:g} lets every value of table {name} be off by its "
                f"whole range; 1 % of the range is 0.01",
                # past this function and make_plan, to who calls the function of the user
                stacklevel=4,
            )
            return


def _shown(codec: Codec) -> dict[str, Any]:
    """Return a codec's spec without its bound, which is that of the table and iteration."""
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
    """Return the plan of the tables with these names; arguments as an ``Exchange`` takes them.

    To be called by the function that the user calls: warnings name its caller.

    Raises:
        SpecError: the arguments contradict each other.
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
    """The codec of every table, chosen once or by measurement while training.

    Attributes:
        candidates: codecs to choose from; one means no choice.
        bounds: per table and iteration; codecs without a bound do not need them.
        bandwidth_gbit_s: of the network, 10**9 bits per second, that speed-ups are predicted for.
        costs: of the GPU that encodes; None to measure speeds on each table, as on a CPU.
        every: iterations between two looks at a table; at each, one table is measured.
        choices: the last choice per table.
    """

    candidates: tuple[Codec, ...]
    bounds: AdaptiveBounds
    # by name: the third argument used to count gigabytes
    _: KW_ONLY
    bandwidth_gbit_s: float = DEFAULT_GBIT_S
    costs: Costs | None = None
    every: int = 1000
    choices: dict[int, Choice] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a plan without codecs, or one that cannot choose between them."""
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
        """Return the arguments that ranks must agree on; equal ones have equal forms."""
        return {
            "codec": [_shown(codec) for codec in self.candidates],
            "bounds": self.bounds.terms(),
            "bandwidth_gbit_s": float(self.bandwidth_gbit_s),
            "every": self.every,
        }

    def codec(self, table: int, iteration: int) -> Codec:
        """Return the codec of a table with its bound at an iteration."""
        found = self.choices.get(table)
        return self._bounded(self.candidates[found.best_index if found else 0], table, iteration)

    def _bounded(self, codec: Codec, table: int, iteration: int) -> Codec:
        if not isinstance(codec, BoundedCodec):
            return codec
        return replace(codec, bound=self.bounds.bound(table, iteration))

    def remeasure_if_due(
        self, tables: Sequence[int], rows: Sequence[torch.Tensor], iteration: int
    ) -> None:
        """Try the codecs on the tables whose turn it is.

        All tables in the first iteration, speeds and ratios; then the ratios of one at a time, so
        that each is seen every ``every`` iterations or so and a look costs next to nothing. Speeds
        are not measured again: a run that is resumed with ``load_state_dict`` then chooses as it
        would have without the interruption.
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
        """Choose for a table of ``nbytes`` bytes per exchange, one of ``num_tables`` of this rank.

        A GPU encodes all tables of one codec in one call, whose fixed cost they share.
        """
        if self.costs is None:
            return choose(sample, codecs, self.bandwidth_gbit_s)
        trial = partial(estimate, costs=self.costs, nbytes=nbytes, num_sharing=num_tables)
        return choose(sample, codecs, self.bandwidth_gbit_s, trial)

    def state_dict(self, iteration: int) -> dict[str, Any]:
        """Return the iteration, the decay and the choices, in the form that JSON can hold."""
        return {
            "iteration": iteration,
            "decay": asdict(self.bounds.decay),
            "codecs": [codec.codec_id for codec in self.candidates],
            "choices": {str(table): choice.to_config() for table, choice in self.choices.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any], tables: Collection[int]) -> int:
        """Go on with a saved decay and the saved choices of ``tables``, those of this rank.

        Returns the saved iteration.

        Raises:
            SpecError: the state is of a plan with other codecs or tables, or is none; nothing is
                changed.
        """
        try:
            iteration = state["iteration"]
            codecs, decay = list(state["codecs"]), state["decay"]
            choices = {int(table): config for table, config in state["choices"].items()}
            # a state that was saved with one bound for all tables may have no decay
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
