"""Optional blocks of a result row beyond size, error and speed: quality and memory."""

from __future__ import annotations

import math
from typing import Annotated, Final

from msgspec import Meta, Struct

from tersor.bench.core.row_checks import Count, FromOne, require


class Estimate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mean over runs, such as paired seeds.

    Attributes:
        mean: the mean over all runs.
        half_width: half width of the mean's 95 % confidence interval; None for a single run.
        num_runs: number of runs.
    """

    mean: float
    half_width: Annotated[float, Meta(ge=0)] | None = None
    num_runs: FromOne = 1


SMALLER_IS_BETTER: Final = ("loss", "held_nbytes", "peak_nbytes")
"""The figures that improve as they fall; all others improve as they rise."""
TITLES: Final = {
    "psnr_db": "PSNR dB", "ssim": "SSIM", "score": "score", "loss": "loss", "accuracy": "accuracy",
    "held_nbytes": "held MiB", "peak_nbytes": "peak MiB",
}  # fmt: skip
"""The table column title of each figure."""


def shown(name: str, figure: Estimate) -> str:
    """Format a figure for the table column of its title.

    Example:
        >>> shown("held_nbytes", Estimate(mean=3 * 2**20))
        '3'
        >>> shown("accuracy", Estimate(mean=0.75, half_width=0.01, num_runs=5))
        '0.75 ± 0.01'
    """
    if name.endswith("_nbytes"):
        return f"{figure.mean / 2**20:.6g}"
    return f"{figure.mean:.6g}" + (
        "" if figure.half_width is None else f" ± {figure.half_width:.2g}"
    )


class _Figures(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A block whose fields are numbers and estimates, all of them optional."""

    def __post_init__(self) -> None:
        """Reject a block without figures, and figures that are not finite."""
        require(type(self).__name__.lower(), bool(self.figures()), "at least one figure, or null")
        for name, figure in self.figures().items():
            # JSON has no infinity, so exactly restored data has no PSNR
            require(name, math.isfinite(figure.mean), "a finite number, or null")

    def figures(self) -> dict[str, Estimate]:
        """Return the measured figures by name."""
        known = {name: getattr(self, name) for name in self.__struct_fields__}
        return {
            name: value if isinstance(value, Estimate) else Estimate(mean=value)
            for name, value in known.items()
            if value is not None
        }


class Quality(_Figures, frozen=True, kw_only=True):
    """Quality of the decoded data or of what was trained on them; None means not measured.

    Attributes:
        psnr_db: peak signal-to-noise ratio in dB.
        ssim: structural similarity, at most 1.
        score: score on a task, such as a question-answering benchmark; larger is better.
        loss: loss; smaller is better.
        accuracy: share of correct answers; larger is better.
    """

    psnr_db: float | None = None
    ssim: Annotated[float, Meta(ge=-1, le=1)] | None = None
    score: Estimate | None = None
    loss: Estimate | None = None
    accuracy: Estimate | None = None


class Memory(_Figures, frozen=True, kw_only=True):
    """Memory of a whole run, such as a training step; None means not measured.

    Attributes:
        held_nbytes: bytes that stay allocated between two steps, or while saved data wait for use.
        peak_nbytes: the peak.
    """

    held_nbytes: Count | None = None
    peak_nbytes: Count | None = None
