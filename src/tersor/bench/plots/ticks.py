"""Decide which numbers an axis can show, and which are its tick labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from matplotlib.axis import Axis

_MOST: Final = 1e300


def can_show(value: float, *, is_log: bool) -> bool:
    """Return whether an axis can show a number; the limit leaves room for the axis's margins."""
    return abs(value) < _MOST and (value > 1 / _MOST or not is_log)


def set_ticks(axis: Axis) -> list[str]:
    """Set a few round numbers as ticks of an axis, and return their labels."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    low, high = sorted(axis.get_view_interval())
    locators = [LogLocator(subs=digits, numticks=8) for digits in ((1,), (1, 3), (1, 2, 5))]
    for locator in locators if axis.get_scale() == "log" else []:
        ticks = [tick for tick in locator.tick_values(low, high) if low <= tick <= high]
        if len(ticks) >= 3:
            break
    else:
        found = MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(low, high)
        ticks = [tick for tick in found if low <= tick <= high]
    labels = [number_label(tick) for tick in ticks]
    axis.set_ticks(ticks, labels)
    return labels


def number_label(value: float) -> str:
    """Format a number for an axis.

    Example:
        >>> [number_label(value) for value in (0, 0.03, 0.00001, 12345.0, 2.5)]
        ['0', '0.03', '1e-5', '12,345', '2.5']
    """
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e7 else f"{value:.3g}".replace("e+0", "e")
    return f"{value:.4g}".replace("e-0", "e-")
