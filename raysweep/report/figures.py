"""The figures, each an SVG that takes its colours from the page and the table it was drawn from.

Nothing is drawn that was not measured: a figure without data is None, a checkpoint without one of its two
numbers is left out, a line ends where its measurements end.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from raysweep.evaluation.metric import error_key
from raysweep.report.axes import linear_axis, log_axis, measured_axis, plain
from raysweep.report.data import Measurements, threshold
from raysweep.report.drawing import RC, WIDTH, Drawn, hover, mark_inside, told
from raysweep.report.format import plus_minus
from raysweep.report.statistics import mean_and_error
from raysweep.report.style import BAND, DASHES, LOOKUP, MARKERS, MUTED, SURFACE, series

#: Most characters of a line of the label of one of several panels that are stacked.
_LABEL = 20


def scatter(
    measured: Measurements, x: str, y: str, *, tolerance: float, name: str, saturated: bool = False
) -> Drawn | None:
    """Draw the accuracy `y` against the loss or flatness `x`, a dot per checkpoint coloured by size.

    Dots are filled where the checkpoint is saturated (a loss of at most `tolerance` above the least possible
    one), and the saturated band is shaded where that loss is the axis.  With `saturated`, only these
    checkpoints are drawn.  Bars are one standard error of the
    measurement.
    """
    table = measured.has(x, y)
    table = table[table[x] > 0]
    if saturated:
        table = table[measured.saturated(table, tolerance)]
    if table.empty:
        return None
    reference = measured.reference.get(y)
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
        axes = figure.subplots()
        plain(axes)
        log_axis(axes.xaxis, reach(table[x], table[error_key(x)], log=True))
        # Figures of all checkpoints get one scale, although one may lack a checkpoint that another has.
        both = table if saturated else measured.has(y)
        heights = reach(both[y], both[error_key(y)]) + ([reference] if reference is not None else [])
        linear_axis(axes.yaxis, heights)
        low, high = axes.get_xlim()
        loss, filled = measured.saturating, ""
        if loss is not None and loss.name in table:
            filled = f"filled: {loss.title} of at most {threshold(loss, tolerance)}"
        if loss is not None and loss.name == x and (loss.least or 0.0) + tolerance > low:
            filled = filled.replace("filled", "filled, and shaded band")
            edge = min((loss.least or 0.0) + tolerance, high)
            axes.axvspan(low, edge, color=BAND, alpha=0.45, linewidth=0, zorder=0)
        if reference is not None:
            axes.axhline(reference, color=MUTED, linestyle=(0, (4, 3)), linewidth=1.1, label=LOOKUP)
        for index, size in enumerate(measured.sizes):
            for inner, variant in enumerate(measured.variants):
                part = table[(table["model"] == size) & (table["variant"] == variant)]
                draw_dots(axes, part, x, y, index, inner, filled=measured.saturated(part, tolerance))
        labels = {metric: measured.metrics[metric].label for metric in (x, y)}
        axes.set(xlabel=labels[x], ylabel=wrapped(labels[y], 40))
        shown = [x, y] if loss is None or loss.name in (x, y) or loss.name not in table else [x, loss.name, y]
        hover(axes, table[x], table[y], told(measured, table, shown))
    equal = "saturated " if saturated else ""
    text = f"{labels[y]} against {labels[x]} on a log axis, {len(table)} {equal}checkpoints"
    columns = _columns(measured, table, [x, error_key(x), y, error_key(y)])
    return Drawn(figure, name, text, columns, filled)


def against(measured: Measurements, x: str, metrics: Sequence[str], *, name: str) -> Drawn | None:
    """Draw each metric against the metric `x`, stacked on log axes: a dot per checkpoint, coloured by size.

    Values that are not positive are left out of the drawing, not of its data.
    """
    table = measured.has(x)
    table = table[table[x] > 0]
    shown = [m for m in metrics if m in table and (table[m] > 0).any()]
    if not shown:
        return None
    with matplotlib.rc_context(RC):
        figure, stacked = panels(len(shown))
        for axes, metric in zip(stacked, shown, strict=True):
            part = table[table[metric] > 0]
            log_axis(axes.yaxis, reach(part[metric], part[error_key(metric)], log=True))
            for index, size in enumerate(measured.sizes):
                for inner, variant in enumerate(measured.variants):
                    dots = part[(part["model"] == size) & (part["variant"] == variant)]
                    draw_dots(axes, dots, x, metric, index, inner, filled=pd.Series(True, index=dots.index))
            axes.set_ylabel(wrapped(measured.metrics[metric].label, _LABEL))
            hover(axes, part[x], part[metric], told(measured, part, [x, metric]))
        log_axis(stacked[-1].xaxis, reach(table[x], table[error_key(x)], log=True))
        label = measured.metrics[x].label
        stacked[-1].set_xlabel(label)
        figure.align_ylabels(stacked)
    columns = [
        column for metric in (x, *metrics) if metric in table for column in (metric, error_key(metric))
    ]
    labels = ", ".join(measured.metrics[metric].label for metric in shown)
    text = f"{labels} against {label}, stacked on log axes"
    return Drawn(figure, name, text, _columns(measured, table, columns))


def panels(count: int, height: float = 1.65) -> tuple[Figure, np.ndarray]:
    """Return a figure of panels, `height` inches each, that are stacked and share their horizontal axis."""
    figure = Figure(figsize=(WIDTH, 0.45 + height * count), layout="constrained")
    stacked = figure.subplots(count, 1, sharex=True, squeeze=False)[:, 0]
    for axes in stacked:
        plain(axes)
    return figure, stacked


def reach(values: pd.Series, errors: pd.Series, *, log: bool = False) -> list[float]:
    """Return the ends of all bars, for the limits of an axis; on a log axis no end is below a third."""
    errors = errors.fillna(0)
    low = values - errors
    return [*(np.maximum(low, values / 3) if log else low), *(values + errors)]


def draw_dots(
    axes: Axes, table: pd.DataFrame, x: str, y: str, index: int, variant: int, *, filled: pd.Series
) -> None:
    """Draw checkpoints of a size and a variant, by number, with their bars, filled where `filled` says so."""
    if table.empty:
        return
    colour, marker = series(index), MARKERS[index % len(MARKERS)]
    places = table[[x, y]].to_numpy(float)
    errors = table[[error_key(x), error_key(y)]].fillna(0).to_numpy(float)
    across = np.concatenate([errors * side for side in ((1, 0), (0, 1))])
    ends = np.tile(places, (2, 1))
    # The limits of the axes are set elsewhere, so nothing is sought in these bars, as `errorbar` would do.
    bars = LineCollection(
        list(np.stack([ends - across, ends + across], axis=1)),
        colors=colour, linewidths=0.8, alpha=0.5, zorder=2,
    )  # fmt: skip
    axes.add_collection(bars, autolim=False)
    for chosen, fill in ((table[filled], colour), (table[~filled], "none")):
        axes.plot(
            chosen[x],
            chosen[y],
            linestyle="none",
            marker=marker,
            markerfacecolor=fill,
            markeredgecolor=colour,
            markeredgewidth=1.2,
        )
        mark_inside(axes, chosen[x], chosen[y], variant, SURFACE if fill == colour else colour, marker=marker)


def along_training(measured: Measurements, metrics: Sequence[str], *, name: str) -> Drawn | None:
    """Draw each metric over steps, stacked: a line per size and variant, mean over seeds ± standard error."""
    cells = _over_seeds(measured.checkpoints, ["model", "variant", "step"], metrics)
    cells = cells[cells["step"] > 0]
    return _stack(measured, cells, metrics, "step", "training steps", name, _lines_along_training)


def across_sizes(measured: Measurements, metrics: Sequence[str], *, name: str) -> tuple[Drawn, int] | None:
    """Draw each metric over parameters at the last step that every size has reached, and return that step.

    None with fewer than two sizes, or without a step that all of them have been measured at.
    """
    table = measured.checkpoints
    present = [m for m in metrics if m in table]
    if len(measured.sizes) < 2 or not present:
        return None
    complete = table.dropna(subset=present)
    steps = [set(complete.loc[complete["model"] == size, "step"]) for size in measured.sizes]
    shared = set.intersection(*steps)
    if not shared:
        return None
    step = max(shared)
    keys = ["model", "variant", "parameters", "step"]
    cells = _over_seeds(complete[complete["step"] == step], keys, present)
    drawn = _stack(measured, cells, present, "parameters", "parameters", name, _lines_across_sizes)
    return (drawn, step) if drawn is not None else None


def _over_seeds(table: pd.DataFrame, keys: list[str], metrics: Sequence[str]) -> pd.DataFrame:
    rows = []
    for values, group in table.groupby(keys, sort=False):
        for metric in (m for m in metrics if m in group):
            known = group[metric].dropna().to_numpy()
            if len(known):
                mean, error = mean_and_error(known)
                row = dict(zip(keys, values, strict=True)) | {"metric": metric, "mean": mean}
                rows.append(row | {"standard_error": np.nan if error is None else error, "seeds": len(known)})
    return pd.DataFrame(rows, columns=[*keys, "metric", "mean", "standard_error", "seeds"])


def _stack(
    measured: Measurements,
    cells: pd.DataFrame,
    metrics: Sequence[str],
    x: str,
    x_label: str,
    name: str,
    lines: Callable[[Axes, Measurements, pd.DataFrame], None],
) -> Drawn | None:
    # A log axis shows nothing of a metric without a positive value.
    accuracies = [metric.name for metric in measured.shown("accuracy")]
    drawable = cells[cells["metric"].isin(accuracies) | (cells["mean"] > 0)]
    shown = [m for m in metrics if (drawable["metric"] == m).any()]
    if not shown:
        return None
    with matplotlib.rc_context(RC):
        figure, stacked = panels(len(shown))
        for axes, metric in zip(stacked, shown, strict=True):
            part = cells[cells["metric"] == metric]
            accuracy = measured.metrics[metric].kind == "accuracy"
            reference = measured.reference.get(metric) if accuracy else None
            if accuracy:
                heights = reach(part["mean"], part["standard_error"])
                linear_axis(axes.yaxis, heights + ([reference] if reference is not None else []))
            else:
                part = part[part["mean"] > 0]
                if len(part):
                    log_axis(axes.yaxis, reach(part["mean"], part["standard_error"], log=True))
            if reference is not None:
                axes.axhline(reference, color=MUTED, linestyle=(0, (4, 3)), linewidth=1.1, label=LOOKUP)
            lines(axes, measured, part)
            hover_line(axes, part[x], part, f"{x_label} {{}}: {measured.metrics[metric].label}")
            axes.set_ylabel(wrapped(measured.metrics[metric].label, _LABEL))
        measured_axis(stacked[-1].xaxis, [float(v) for v in cells[x]])
        stacked[-1].set_xlabel(x_label)
        figure.align_ylabels(stacked)
    labels = ", ".join(measured.metrics[metric].label for metric in shown)
    return Drawn(figure, name, f"{labels} over {x_label}, stacked", cells)


def _lines_along_training(axes: Axes, measured: Measurements, part: pd.DataFrame) -> None:
    for index, size in enumerate(measured.sizes):
        for dash, variant in enumerate(measured.variants):
            line = part[(part["model"] == size) & (part["variant"] == variant)].sort_values("step")
            draw_line(axes, line["step"], line, series(index), MARKERS[index % len(MARKERS)], dash)


def _lines_across_sizes(axes: Axes, measured: Measurements, part: pd.DataFrame) -> None:
    for dash, variant in enumerate(measured.variants):
        line = part[part["variant"] == variant].sort_values("parameters")
        axes.plot(
            line["parameters"], line["mean"], color=MUTED, linestyle=DASHES[dash % len(DASHES)], linewidth=1
        )
        for index, size in enumerate(measured.sizes):
            one = line[line["model"] == size]
            draw_line(axes, one["parameters"], one, series(index), MARKERS[index % len(MARKERS)], dash)


def draw_line(axes: Axes, x: pd.Series, line: pd.DataFrame, colour: str, marker: str, dash: int) -> None:
    """Draw a line with its bars; `line` has the columns mean and standard_error."""
    axes.errorbar(
        x,
        line["mean"],
        yerr=line["standard_error"].fillna(0),
        color=colour,
        marker=marker,
        linestyle=DASHES[dash % len(DASHES)],
        elinewidth=1.0,
        capsize=2,
    )


def hover_line(axes: Axes, x: pd.Series, line: pd.DataFrame, what: str) -> None:
    """Let the points of lines show their values under the pointer; `what` is a format of x.

    `line` has the columns model, variant, mean and standard_error.
    """
    texts = []
    for place, row in zip(x, line.to_dict("records"), strict=True):
        of = " · ".join(filter(None, [str(row["model"]), str(row["variant"])]))
        value = plus_minus(row["mean"], row["standard_error"])
        texts.append(f"{of}\n{what.format(f'{place:,.0f}')}: {value}")
    hover(axes, x, line["mean"], texts)


def _columns(measured: Measurements, table: pd.DataFrame, metrics: list[str]) -> pd.DataFrame:
    keys = ["run_id", "model", "variant", "seed", "parameters", "step"]
    # The loss says which dots are filled.
    loss = measured.saturating
    extra = [loss.name] if loss is not None and loss.name in table and loss.name not in metrics else []
    return table[[*keys, *extra, *metrics]]


def wrapped(label: str, width: int) -> str:
    """Return a label in lines of at most `width` characters, so that it fits along its axis.

    A coordinate and its value, such as "task A", stay together.

    >>> wrapped("probe accuracy, task A", 20).splitlines()
    ['probe accuracy,', 'task A']
    """
    head, comma, last = label.rpartition(", ")
    kept = last.replace(" ", "\xa0", 1)
    lines = textwrap.wrap(head + comma + kept, width, break_on_hyphens=False, break_long_words=False)
    return "\n".join(lines).replace("\xa0", " ")
