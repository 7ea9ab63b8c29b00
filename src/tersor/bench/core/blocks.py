"""What a result row may say beyond size, error and speed: quality and memory."""

from __future__ import annotations

import math
from typing import Annotated, Final

from msgspec import Meta, Struct

from tersor.bench.core.row_checks import Count, FromOne, require


class Estimate(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mean over runs, such as paired seeds.

    Attributes:
        mean: over all runs.
        half_width: of its 95 % confidence interval; None where one run alone was made.
        num_runs: that the mean is over.
    """

    mean: float
    half_width: Annotated[float, Meta(ge=0)] | None = None
    num_runs: FromOne = 1


SMALLER_IS_BETTER: Final = ("loss", "held_nbytes", "peak_nbytes")
"""Of all figures; larger ones are better of the others."""
TITLES: Final = {
    "psnr_db": "PSNR dB", "ssim": "SSIM", "score": "score", "loss": "loss", "accuracy": "accuracy",
    "held_nbytes": "held MiB", "peak_nbytes": "peak MiB",
}  # fmt: skip
"""What a column of a table calls them."""


def shown(name: str, figure: Estimate) -> str:
    """Return a figure as it stands below its title.

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
        """Refuse a block that says nothing."""
        require(type(self).__name__.lower(), bool(self.figures()), "at least one figure, or null")
        for name, figure in self.figures().items():
            # JSON has no infinity: of data that came back exactly there is no PSNR
            require(name, math.isfinite(figure.mean), "a finite number, or null")

    def figures(self) -> dict[str, Estimate]:
        """Return what was measured, by name."""
        known = {name: getattr(self, name) for name in self.__struct_fields__}
        return {
            name: value if isinstance(value, Estimate) else Estimate(mean=value)
            for name, value in known.items()
            if value is not None
        }


class Quality(_Figures, frozen=True, kw_only=True):
    """How good the decoded data are, or what was trained on them; None for what was not measured.

    Attributes:
        psnr_db: peak signal-to-noise ratio.
        ssim: structural similarity, at most 1.
        score: of a task, such as a benchmark of questions; larger is better.
        loss: smaller is better.
        accuracy: share of right answers; larger is better.
    """

    psnr_db: float | None = None
    ssim: Annotated[float, Meta(ge=-1, le=1)] | None = None
    score: Estimate | None = None
    loss: Estimate | None = None
    accuracy: Estimate | None = None


class Memory(_Figures, frozen=True, kw_only=True):
    """Memory of a whole run, such as a training step; None for what was not measured.

    Attributes:
        held_nbytes: what stays allocated between two steps, or for the data that wait.
        peak_nbytes: the most at any time.
    """

    held_nbytes: Count | None = None
    peak_nbytes: Count | None = None
