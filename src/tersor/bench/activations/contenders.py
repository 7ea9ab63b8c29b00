"""The contenders: methods of holding what backward needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import torch

from tersor import __version__
from tersor.bench.activations import torch_methods
from tersor.bench.activations.case import Case, Forward
from tersor.bench.activations.measuring import Held
from tersor.errors import SpecError
from tersor.sites import activations
from tersor.workloads.training.activations import ActivationOptions, BalancedActivations

EXACT: Final = "exact"
COMPILED: Final = "compiled"
LOSSLESS: Final = "lossless"
INTEGER_FORMS: Final = ("integers", "exact: integers", "pooling indices")
"""The forms in a report that do not hold floating-point tensors."""
_SETTLING_PROBES: Final = 10
"""Probes before measuring; each lets the controller at least halve its distance to the target."""


class Attached(NamedTuple):
    """A contender applied to one case.

    Attributes:
        forward: runs the model's forward pass.
        held: returns what the last forward pass holds; None if it must be counted.
    """

    forward: Forward
    held: Callable[[], Held] | None = None


@dataclass(frozen=True, slots=True)
class Contender:
    """A method of holding what backward needs.

    Attributes:
        name: name in rows and on the command line.
        attach: applies it to a case.
        options: its JSON-ready options.
        is_ours: whether it is tersor's.
        compression: the equivalent options of a training run; None if there are none.
        baseline: name of the contender with whose times and peaks its own are compared.
        needs_cuda: whether it has no effect on a CPU.
        is_counted: whether the tensors that it holds can be observed one by one.
        note: caveats for readers.
    """

    name: str
    attach: Callable[[Case], Attached]
    options: Mapping[str, Any] = field(default_factory=dict)
    is_ours: bool = False
    compression: ActivationOptions | None = None
    baseline: str = EXACT
    needs_cuda: bool = False
    is_counted: bool = True
    note: str = ""

    @property
    def is_compiled(self) -> bool:
        """Whether the model is compiled."""
        return COMPILED in (self.name, self.baseline)

    @property
    def version(self) -> str:
        """The version of tersor or torch, whichever implements it."""
        return __version__ if self.is_ours else str(torch.__version__)

    def absence(self, device: str) -> str | None:
        """Return why it cannot run on a device with this torch, or None if it can."""
        if self.needs_cuda and torch.device(device).type != "cuda":
            return f"{self.name} is left out: what a CPU saves is in its memory already"
        if self.name == "fp8" and not torch_methods.has_fp8_pass():
            return f"fp8 is left out: torch {torch.__version__} has no such pass"
        return None

    def attached(self, case: Case) -> Attached:
        """Apply it to a case."""
        return self.attach(case)


def _theirs(
    name: str,
    make: Callable[[Case], Forward],
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> Contender:
    return Contender(name, lambda case: Attached(make(case)), options or {}, **more)


def _ours(name: str, note: str = "", **options: Any) -> Contender:
    """Return a contender that compresses with ``ActivationOptions``, balanced if ``parts`` are named."""
    chosen = (BalancedActivations if "parts" in options else ActivationOptions)(**options)
    spec = {key: {"relative": x} if key == "bound" else x for key, x in options.items()}

    def attach(case: Case) -> Attached:
        compression = chosen.compression()

        def forward(*batch: Any) -> torch.Tensor:
            with compression:
                outputs: torch.Tensor = case.model(*batch)
            return outputs

        if isinstance(chosen, BalancedActivations):
            compression.balance(case.model, lambda: case.forward(forward), parts=chosen.parts)
        if chosen.target_score is not None:
            for _ in range(_SETTLING_PROBES):
                compression.probe(case.model, lambda: case.forward(forward))
        return Attached(forward, lambda: held_by(compression.report()))

    return Contender(name, attach, spec, is_ours=True, compression=chosen, note=note)


def held_by(report: activations.ActivationReport) -> Held:
    """Return what a step held; masks count as floats because dropout's masks on a CPU are floats."""
    whole = sum(report.forms[name].held_nbytes for name in INTEGER_FORMS if name in report.forms)
    return Held(report.held_nbytes, report.held_nbytes - whole)


def _compiled(name: str, **options: Any) -> Contender:
    baseline = EXACT if name == COMPILED else COMPILED
    return _theirs(name, partial(torch_methods.compiled, **options), options, baseline=baseline)


def _compiled_ours(codec: str) -> Contender:
    """Return a contender that compresses inside compiled graphs, where tensors cannot be counted."""

    def attach(case: Case) -> Attached:
        model, compression = torch_methods.compiled(case), activations.compiled(codec)

        def forward(*batch: Any) -> torch.Tensor:
            with compression:
                return model(*batch)

        return Attached(forward)

    return Contender(
        f"{COMPILED}-{codec}", attach, {"codec": codec}, is_ours=True, baseline=COMPILED,
        is_counted=False, note="encoded and decoded inside the compiled graphs",
    )  # fmt: skip


_FAMILIES: Final[Mapping[str, Callable[[str, float], Contender]]] = {
    "rms": lambda name, step: _ours(name, step=step),
    "score": lambda name, target: _ours(name, target_score=target),
    "balanced": lambda name, step: _ours(name, step=step, parts="tensor"),
    "ans": lambda name, bound: _ours(name, codec="ans", bound=bound),
    "budget": lambda name, budget: _compiled(name, budget=budget),
}
"""Contenders with a number, which is a step in ``rms-0.5``, a step with a factor for each tensor in ``balanced-0.5``, a target in
``score-0.95``, a relative bound in ``ans-0.01``, and a share of the activations in ``budget-0.5``."""
_NAMED: Final = (
    _theirs(EXACT, lambda case: case.model),
    _ours(LOSSLESS, "nothing is compressed: what the hooks cost", codec="raw"),
    _ours("group8", codec="group8"),
    _ours("group4", codec="group4"),
    _ours("group2", "groups with minimum and range, rounded at random, as ActNN has them", codec="group2"),
    _theirs("checkpoint", torch_methods.recomputed, note="torch.utils.checkpoint of every block"),
    _theirs(
        "save-on-cpu", torch_methods.offloaded, {"pin_memory": True}, needs_cuda=True, is_counted=False,
        note="what waits is in pinned memory of the host",
    ),
    _compiled(COMPILED),
    _compiled("fp8", fp8=torch_methods.FP8_OPTIONS),
    _compiled_ours("group4"),
    _compiled_ours("group8"),
)  # fmt: skip
_BY_NAME: Final = {one.name: one for one in _NAMED}
DEFAULT: Final = (
    EXACT, LOSSLESS, "rms-1", "rms-0.5", "balanced-1", "score-0.97", "score-0.95", "ans-0.01", "group8", "group4", "group2",
    "checkpoint", "save-on-cpu", COMPILED, "budget-0.5", "budget-0", "fp8",
    "compiled-group4", "compiled-group8",
)  # fmt: skip
SMOKE: Final = (EXACT, LOSSLESS, "rms-1", "group4", "checkpoint")


def make_contender(name: str) -> Contender:
    """Return the contender with a name.

    Raises:
        SpecError: no contender has that name.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    family, _, number = name.partition("-")
    try:
        return _FAMILIES[family](name, float(number))
    except (KeyError, ValueError) as error:
        raise SpecError(
            f"there is no {name!r}; choose from {', '.join(_BY_NAME)}, and from rms-STEP, balanced-STEP, "
            "score-TARGET, ans-BOUND and budget-SHARE, such as rms-0.5"
        ) from error
