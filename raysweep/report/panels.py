"""Figures of panels side by side that share their height: a line for each size and variant.

Colours, markers and dashes are those of the other figures, so the page's legend holds here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raysweep.evaluation.metric import error_key
from raysweep.report.axes import linear_axis, measured_axis, plain
from raysweep.report.data import Measurements
from raysweep.report.drawing import RC, WIDTH
from raysweep.report.figures import draw_line, hover_line, reach
from raysweep.report.format import number
from raysweep.report.statistics import mean_and_error
from raysweep.report.style import INK, LOOKUP, MARKERS, MUTED, series, to_variables

#: Looks of values that lines are compared with, by name.
REFERENCES: dict[str, tuple[str, Any]] = {
    "best possible": (INK, "solid"),
    LOOKUP: (MUTED, (0, (4, 3))),
    "majority label": (MUTED, (0, (1, 2))),
}

#: Ticks of a narrow axis are no nearer to each other than this share of it.
_APART = 0.2

#: A reference is in the figure if it is no further off than this multiple of the lines' range, or this much.
_REACH, _SPAN = 1.5, 0.1


@dataclass(frozen=True)
class Panel:
    """One panel: `lines` has the columns model, variant, x, mean and standard_error (nan for none).

    `references` are the values to compare with, by their names in `REFERENCES`: one for the whole panel, or
    a series with one for each x.
    """

    title: str
    lines: pd.DataFrame
    references: Mapping[str, float | pd.Series] = field(default_factory=dict)


def over_runs(table: pd.DataFrame, keys: Sequence[str], metric: str) -> pd.DataFrame:
    """Return mean, standard error and number of runs of a metric for each group of checkpoints.

    A single run keeps the standard error of its own measurement.
    """
    rows = []
    for values, group in table.dropna(subset=[metric]).groupby(list(keys), sort=False):
        mean, error = mean_and_error(group[metric].to_numpy())
        own = float(group[error_key(metric)].iloc[0])
        row = dict(zip(keys, values, strict=True)) | {"metric": metric, "mean": mean}
        rows.append(row | {"standard_error": own if error is None else error, "runs": len(group)})
    return pd.DataFrame(rows, columns=[*keys, "metric", "mean", "standard_error", "runs"])


def abreast(
    measured: Measurements,
    panels: Sequence[Panel],
    *,
    x_label: str,
    y_label: str,
    tick: Callable[[float], str],
) -> tuple[Figure, str]:
    """Return a figure of panels side by side, and a sentence on references that lie far off ("" for none).

    The horizontal axis is a log axis of positive x, and each panel has a point.
    """
    ends = [end for panel in panels for end in reach(panel.lines["mean"], panel.lines["standard_error"])]
    span = max(_REACH * (max(ends) - min(ends)), _SPAN)
    room = min(ends) - span, max(ends) + span
    panels, outside = _inside(panels, room)
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
        row = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        heights = ends
        for axes, panel in zip(row, panels, strict=True):
            plain(axes)
            heights = [*heights, *_refer(axes, panel)]
            _draw(axes, measured, panel.lines, f"{x_label} {{}}: {y_label}")
            measured_axis(axes.xaxis, [float(x) for x in panel.lines["x"]], tick, apart=_APART)
            axes.set_title(panel.title, fontsize=10, color=MUTED, loc="left")
            axes.set_xlabel(x_label)
        linear_axis(row[0].yaxis, heights)
        row[0].set_ylabel(y_label)
    return figure, outside


def references_of(figures: Iterable[Figure]) -> list[str]:
    """Return the names in `REFERENCES` of the values that figures compare with."""
    named = {line.get_label() for figure in figures for axes in figure.axes for line in axes.lines}
    return [name for name in REFERENCES if name in named]


def reference_keys(figures: Iterable[Figure]) -> list[tuple[str, str]]:
    """Return a line as SVG and its meaning for each value that figures compare with."""
    keys = []
    for name in references_of(figures):
        colour, style = REFERENCES[name]
        dashes = "" if style == "solid" else f' stroke-dasharray="{" ".join(map(str, style[1]))}"'
        line = (
            f'<line x1="0" y1="7" x2="26" y2="7" stroke="{to_variables(colour)}" stroke-width="1.5"{dashes}/>'
        )
        keys.append((f'<svg width="26" height="14" aria-hidden="true">{line}</svg>', name))
    return keys


def references_legend(figures: Iterable[Figure]) -> str:
    """Return the legend of the values that figures compare with as HTML; "" where there are none."""
    items = [f"<li>{line}{name}</li>" for line, name in reference_keys(figures)]
    return f'<ul class="legend">{"".join(items)}</ul>' if items else ""


def _inside(panels: Sequence[Panel], room: tuple[float, float]) -> tuple[list[Panel], str]:
    """Return the panels with the references that lie within `room`, and a sentence on the others.

    A reference far away would press all lines together.
    """
    inside: list[Panel] = []
    outside: dict[str, None] = {}
    for panel in panels:
        near = {}
        for name, value in panel.references.items():
            if isinstance(value, pd.Series) or room[0] <= value <= room[1]:
                near[name] = value
            else:
                outside[f"{name}, {number(value)}"] = None
        inside.append(replace(panel, references=near))
    return inside, f" Outside the axis: {'; '.join(outside)}." if outside else ""


def _refer(axes: Axes, panel: Panel) -> list[float]:
    """Draw the references of a panel and return their values."""
    values: list[float] = []
    for name, value in panel.references.items():
        colour, style = REFERENCES[name]
        if isinstance(value, pd.Series):
            axes.plot(value.index, value, color=colour, linestyle=style, linewidth=1.1, label=name)
            values += list(value)
        else:
            axes.axhline(value, color=colour, linestyle=style, linewidth=1.1, label=name)
            values.append(value)
    return values


def _draw(axes: Axes, measured: Measurements, lines: pd.DataFrame, what: str) -> None:
    for index, size in enumerate(measured.sizes):
        for dash, variant in enumerate(measured.variants):
            line = lines[(lines["model"] == size) & (lines["variant"] == variant)].sort_values("x")
            error = line["standard_error"].fillna(0)
            axes.fill_between(
                line["x"], line["mean"] - error, line["mean"] + error, color=series(index), alpha=0.18,
                linewidth=0,
            )  # fmt: skip
            draw_line(axes, line["x"], line, series(index), MARKERS[index % len(MARKERS)], dash)
    hover_line(axes, lines["x"], lines, what)
