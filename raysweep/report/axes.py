"""Axes that read well whatever the range: few ticks, plain numbers, no offsets."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from raysweep.report.format import count, short
from raysweep.report.style import GRID, INK, MUTED

_MANTISSAS: tuple[tuple[float, ...], ...] = (
    *((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 5, 7)),
    (1, 1.2, 1.5, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8, 9),
)


def log_ticks(low: float, high: float) -> list[float]:
    """Return two to seven round numbers between two positive limits.

    >>> log_ticks(0.008, 0.5), log_ticks(1000, 20000)
    ([0.01, 0.03, 0.1, 0.3], [1000.0, 3000.0, 10000.0])
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    whole = [float(f"1e{d}") for d in decades if low <= float(f"1e{d}") <= high]
    if len(whole) > 7:
        return whole[:: math.ceil(len(whole) / 7)]
    ticks: list[float] = []
    for mantissas in _MANTISSAS:
        found = [float(f"{m}e{d}") for d, m in itertools.product(decades, mantissas)]
        found = [tick for tick in found if low <= tick <= high]
        if len(found) > 7:
            break
        ticks = found
        if len(ticks) >= 3:
            break
    if len(ticks) < 2:
        # So narrow a range is as good as linear.
        ticks = [float(t) for t in MaxNLocator(4).tick_values(low, high) if low <= t <= high]
    return ticks


def log_axis(axis: Axis, values: Sequence[float], label: Callable[[float], str] = short) -> None:
    """Make a log axis whose limits leave room around positive `values`."""
    low, high = min(values), max(values)
    room = max((high / low) ** 0.08, 1.06)
    low, high = low / room, high * room
    name = _name(axis)
    axis.axes.set(**{f"{name}scale": "log", f"{name}lim": (low, high)})
    fixed_ticks(axis, log_ticks(low, high), label)


def measured_axis(
    axis: Axis, values: Sequence[float], label: Callable[[float], str] = count, *, apart: float = 0.11
) -> None:
    """Make a log axis with a tick at each of the `values`, where these are few.

    They must be `apart` by more than this share of the whole range.
    """
    distinct = sorted(set(values))
    log_axis(axis, distinct, label)
    span = math.log(distinct[-1] / distinct[0])
    gaps = [math.log(b / a) for a, b in itertools.pairwise(distinct)]
    if len(distinct) <= 7 and all(gap > apart * span for gap in gaps):
        fixed_ticks(axis, distinct, label)


def fixed_ticks(axis: Axis, ticks: Sequence[float], label: Callable[[float], str]) -> None:
    """Put labelled ticks where they are said to be, and no others."""
    axis.set_major_locator(FixedLocator(list(ticks)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: label(value)))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def linear_axis(axis: Axis, values: Sequence[float]) -> None:
    """Make a linear axis whose limits leave room around `values`."""
    low, high = min(values), max(values)
    room = max(0.09 * (high - low), 0.004)
    axis.axes.set(**{f"{_name(axis)}lim": (low - room, high + room)})
    axis.set_major_locator(MaxNLocator(5, min_n_ticks=3))
    axis.get_major_formatter().set_useOffset(False)  # type: ignore[attr-defined]


def _name(axis: Axis) -> str:
    return "x" if axis is axis.axes.xaxis else "y"


def plain(axes: Axes) -> None:
    """Take away what is not data: two spines, and a grid that stays behind."""
    axes.set_facecolor("none")
    axes.set_axisbelow(True)
    axes.grid(True, color=GRID, linewidth=0.7)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(MUTED)
    axes.tick_params(colors=MUTED, labelcolor=INK, length=3)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
