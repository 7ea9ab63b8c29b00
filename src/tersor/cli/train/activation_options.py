"""Options for compressing tensors saved for backward in a training, and their results in tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from tersor.cli.options import option, parse_size
from tersor.cli.screen import binary_size

if TYPE_CHECKING:
    from tersor.workloads.training.activations import ActivationOptions

Activations = Annotated[
    str | None,
    option("--activations", "Compress tensors saved for backward: auto, or a codec's id.", "CODEC"),
]
Step = Annotated[
    float | None,
    option("--activation-step", "Of rms, in units of the root mean square of 256 values.", "X"),
]
Bound = Annotated[
    float | None, option("--activation-bound", "Relative, of the error of every value.", "R")
]
Score = Annotated[
    float | None,
    option("--target-score", "Similarity of gradients to steer to, from 0 to 1.", "S"),
]
Budget = Annotated[
    str | None,
    option("--activation-budget", "Bytes that held tensors are to fit in, as 512M.", "SIZE"),
]
Balance = Annotated[
    str | None,
    option(
        "--activation-balance",
        "Give parts of the model steps of their own: kind (of function) or tensor.",
        "PARTS",
    ),
]


def activation_options(
    codec: str | None, step: float | None, bound: float | None, score: float | None,
    budget: str | None, balance: str | None,
) -> ActivationOptions | None:  # fmt: skip
    """Return the activation options; None if none is given."""
    from tersor.sites.activations.balance import checked_parts
    from tersor.workloads.training.activations import ActivationOptions, BalancedActivations

    given = {
        "codec": codec, "step": step, "bound": bound, "target_score": score,
        "budget_nbytes": parse_size(budget, "--activation-budget"),
    }  # fmt: skip
    known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if balance is not None:
        return BalancedActivations(parts=checked_parts(balance), **known)
    return ActivationOptions(**known) if known else None


def activation_lines(totals: dict[str, Any]) -> list[tuple[str, str]]:
    """Return table lines on the tensors saved in the last step; empty if nothing was compressed."""
    report = totals.get("activations")
    if report is None or not report["held_nbytes"]:
        return []
    lines = [
        ("saved for backward", binary_size(report["original_nbytes"])),
        ("held for it", binary_size(report["held_nbytes"])),
        ("ratio", f"{report['original_nbytes'] / report['held_nbytes']:.2f}"),
    ]
    if report["similarity"] is not None:
        lines.append(("score", f"{report['similarity']['score']:.4f}"))
    return lines
