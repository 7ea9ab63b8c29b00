"""Options for compressing tensors saved for backward in a training, and their results in tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final

from tersor.cli.options import option, parse_size
from tersor.cli.screen import binary_size
from tersor.errors import SpecError, UnknownCodecError

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
        "After 50 steps, give parts of the model steps of their own: kind (of function) or tensor.",
        "PARTS",
    ),
]

_TYPED: Final = {
    "step": "--activation-step",
    "bound": "--activation-bound",
    "an error bound": "--activation-bound",
    "target_score": "--target-score",
    "budget_bytes": "--activation-budget",
    "parts": "--activation-balance",
}
_WORDS: Final = re.compile(
    rf"(?<!unknown )\bcodec[ =]'(?P<codec>\w+)'|\b(?P<option>{'|'.join(_TYPED)})\b"
)
"""What the site's sentences call its arguments."""


def activation_options(
    codec: str | None, step: float | None, bound: float | None, score: float | None,
    budget: str | None, balance: str | None,
) -> ActivationOptions | None:  # fmt: skip
    """Return the activation options; None if none is given.

    Raises:
        SpecError: they do not fit together, or one is out of range; the sentence names options as typed.
        UnknownCodecError: there is no such codec.
    """
    from tersor.sites.activations.balance import checked_parts
    from tersor.workloads.training.activations import ActivationOptions, BalancedActivations

    given = {
        "codec": codec, "step": step, "bound": bound, "target_score": score,
        "budget_nbytes": parse_size(budget, "--activation-budget"),
    }  # fmt: skip
    known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    try:
        if balance is not None:
            return BalancedActivations(parts=checked_parts(balance), **known)
        return ActivationOptions(**known) if known else None
    except (SpecError, UnknownCodecError) as error:
        raise type(error)(_as_typed(str(error))) from error


def _as_typed(sentence: str) -> str:
    """Return a sentence of the site with the names of the command's options."""
    words = _WORDS.sub(
        lambda found: _TYPED.get(found["option"]) or f"--activations {found['codec']}", sentence
    )
    return words if "--" in words else f"--activations: {words}"


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
        level = report.get("similarity_level")
        at = "" if level is None else f" at {level:.4g}"
        lines.append(("score", f"{report['similarity']['score']:.4f}{at}"))
    return lines
