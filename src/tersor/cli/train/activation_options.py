"""Options for compressing tensors saved for backward in a training, and their results in tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
    option("--activation-step", "Step of codec rms, in root mean squares of 256 values.", "X"),
]
Bound = Annotated[
    float | None,
    option(
        "--activation-bound",
        "Relative error bound of every value, as 0.01 for 1 % of the range.",
        "R",
    ),
]
Score = Annotated[
    float | None,
    option("--target-score", "Similarity of gradients to steer to, between 0 and 1, as 0.95.", "S"),
]
Budget = Annotated[
    str | None,
    option(
        "--activation-budget",
        "Bytes that the compressed tensors of a step must fit in, as 512M.",
        "SIZE",
    ),
]
Balance = Annotated[
    str | None,
    option(
        "--activation-balance",
        "From step 50 on, give each kind of function (kind) or each tensor (tensor) a step of its own.",
        "PARTS",
    ),
]

ProbeEvery = Annotated[
    int | None,
    option(
        "--activation-probe-every",
        "Steps between measurements of the score, by an eighth of a batch; 0 for none. Default: 50 with --target-score, "
        "else 0.",
        "N",
    ),
]

_TYPED: Final = {
    "step": "--activation-step",
    "bound": "--activation-bound",
    "an error bound": "--activation-bound",
    "target_score": "--target-score",
    "budget_bytes": "--activation-budget",
    "parts": "--activation-balance",
    "probe_every": "--activation-probe-every",
}
_WORDS: Final = re.compile(
    rf"(?<!unknown )\bcodec[ =]'(?P<codec>\w+)'|\b(?P<option>{'|'.join(_TYPED)})\b"
)
"""What the site's sentences call its arguments."""


def activation_options(
    codec: str | None, step: float | None, bound: float | None, score: float | None,
    budget: str | None, balance: str | None, probe_every: int | None,
) -> ActivationOptions | None:  # fmt: skip
    """Return the activation options; None if none is given.

    Without ``probe_every``, a target score is probed every ``PROBE_EVERY`` steps.

    Raises:
        SpecError: they do not fit together, or one is out of range; the sentence names options as typed.
        UnknownCodecError: there is no such codec.
    """
    from tersor.sites.activations.balance import checked_parts
    from tersor.workloads.training.activations import (
        PROBE_EVERY,
        ActivationOptions,
        BalancedActivations,
    )

    if probe_every is None and score is not None:
        probe_every = PROBE_EVERY
    given = {
        "codec": codec, "step": step, "bound": bound, "target_score": score,
        "budget_nbytes": parse_size(budget, "--activation-budget"), "probe_every": probe_every or None,
    }  # fmt: skip
    known: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if balance is None and set(known) == {"probe_every"}:
        raise SpecError(
            "--activation-probe-every measures compressed activations; give --activations, --target-score or another of these "
            "options too"
        )
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
        at = _at({"score_level": report.get("similarity_level")})
        lines.append(("score", f"{report['similarity']['score']:.4f}{at}"))
    probe = totals.get("probe")
    if probe is not None:
        lines.append((f"probed before step {probe['step']}", f"{probe['score']:.4f}{_at(probe)}"))
    return lines


def _at(values: Mapping[str, Any]) -> str:
    """Return at which level a score was found, in words."""
    level = values.get("score_level")
    return "" if level is None else f" at {level:.4g}"


def probe_words(line: Mapping[str, Any]) -> str:
    """Return the words for a log line of kind ``probe``."""
    level = line.get("activation_level")
    after = "" if level is None else f", level now {level:.4g}"
    return f"probed score {line['score']:.4f}{_at(line)}{after}"
