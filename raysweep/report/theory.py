"""The figures of the theory: gradient covariance against Hessian, SGD against its ODE, brackets.

Each is drawn from the quantities of one evaluation, and is None where the tidy table has no such quantities.
The caption counts what an axis cannot show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raysweep.evaluation import bartlett as identity
from raysweep.evaluation import dyck as bracket_task
from raysweep.evaluation.metric import error_key
from raysweep.models.dyck import expected_accuracy
from raysweep.report.axes import linear_axis, log_axis, plain
from raysweep.report.data import Measurements, at
from raysweep.report.descent import descent
from raysweep.report.drawing import RC, WIDTH, Drawn
from raysweep.report.style import DASHES, INK, MARKERS, MUTED, category, series

#: Lengths of brackets in a figure; further ones are in its table.
_MOST_PANELS = 4

#: The quantities of the bracket task that its figure's table holds.
_BRACKETS = (
    *(bracket_task.LOSS, bracket_task.TRACE, bracket_task.BOUND, bracket_task.TRACE_OVER_BOUND),
    *(bracket_task.ACCURACY, bracket_task.ERROR),
)

Figured = tuple[Drawn, str]


def theory_figures(frame: pd.DataFrame, measured: Measurements) -> list[tuple[str, Drawn, str, str]]:
    """Return the figures that a tidy table has data for: name, figure, heading and caption of each."""
    found = [
        ("bartlett", "Bartlett's identity", bartlett(measured)),
        ("descent", "Descent of the trace under SGD's noise", descent(frame)),
        ("brackets", "Solutions of the bracket task", brackets(frame)),
    ]
    return [(name, figured[0], heading, figured[1]) for name, heading, figured in found if figured]


def bartlett(measured: Measurements) -> Figured | None:
    """Draw the ratio of both traces, and the traces, against excess loss: a line per run."""
    loss, ratio, covariance, hessian = names = [
        quantity.name
        for quantity in (identity.EXCESS_LOSS, identity.RATIO, identity.COVARIANCE, identity.HESSIAN)
    ]
    table = measured.has(*names)
    everything = len(table)
    table = table[table[loss] > 0]
    if table.empty:
        return None
    traces = table[[covariance, hessian]].to_numpy()
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 5.4), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True)
        for axes in (upper, lower):
            plain(axes)
        upper.axhline(1, color=INK, linestyle=(0, (4, 3)), linewidth=1.1, label="Bartlett's identity")
        named: set[str] = set()
        for (model, _), run in table.groupby(["model", "run_id"], sort=False):
            index = measured.sizes.index(str(model))
            run = run.sort_values("step")
            look: dict[str, Any] = {"color": series(index), "marker": MARKERS[index % len(MARKERS)]}
            label = None if model in named else str(model)
            named.add(str(model))
            _line(upper, run[loss], run[ratio], run[error_key(ratio)], label=label, **look)
            for dash, name in enumerate((covariance, hessian)):
                shown = run[run[name] > 0]
                fill = "none" if dash else None
                _line(lower, shown[loss], shown[name], shown[error_key(name)], dash=dash, fill=fill, **look)
        log_axis(upper.xaxis, list(table[loss]))
        linear_axis(upper.yaxis, [*table[ratio], 1.0])
        if (traces > 0).any():
            log_axis(lower.yaxis, list(traces[traces > 0]))
        for dash, name in enumerate(("gradient covariance Tr Σ", "Hessian Tr ∇²L")):
            fill = "none" if dash else MUTED
            style = {"linestyle": DASHES[dash], "marker": "o", "markerfacecolor": fill}
            lower.plot([], [], color=MUTED, label=name, **style)
        upper.set_ylabel("Tr Σ / Tr ∇²L")
        lower.set(xlabel="excess loss (nats); training goes to the left", ylabel="trace (nats)")
        for axes in (upper, lower):
            _legend(axes)
        figure.align_ylabels([upper, lower])
    text = (
        f"ratio of gradient covariance to Hessian against excess loss on a log axis, {len(table)} checkpoints"
    )
    caption = (
        "Trace of the covariance Σ of the gradient's noise against the trace of the Hessian, on the same "
        "inputs. By Bartlett's identity they are equal at saturation, to the left. A dot is a checkpoint, "
        "lines follow training, bars are ± one standard error over the inputs, which both traces of a ratio "
        "share."
        + _left_out(everything - len(table), "checkpoint", "an excess loss of zero or less")
        + _left_out(int((traces <= 0).sum()), "trace", "a value of zero or less")
    )
    columns = [column for name in names for column in (name, error_key(name))]
    return Drawn(figure, "bartlett", text, table[["run_id", "model", "seed", "step", *columns]]), caption


def _left_out(count: int, what: str, why: str) -> str:
    """Return a caption's sentence on points that a log axis cannot show; "" for none."""
    if not count:
        return ""
    return f" Not shown: {count} {what}{'s' if count > 1 else ''} with {why}, which a log axis cannot show."


def brackets(frame: pd.DataFrame) -> Figured | None:
    """Draw accuracy against examples, and the trace beside its bound: a panel a length, a line a solution."""
    table = at(frame, *_BRACKETS)
    if table.empty:
        return None
    table["length"] = table.get("language.length", pd.Series(np.nan, index=table.index))
    lengths = sorted(set(table["length"].fillna(0)))[:_MOST_PANELS]
    solutions = list(dict.fromkeys(table["algorithm"]))
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 0.9 + 2.5 * len(lengths)), layout="constrained")
        grid = figure.subplots(len(lengths), 2, squeeze=False, width_ratios=(3, 2))
        for (left, right), length in zip(grid, lengths, strict=True):
            part = table[table["length"].fillna(0) == length]
            _transfer(left, part, solutions, int(length))
            _beside_the_bound(right, part, solutions)
            if length:
                left.set_title(f"{length:g} brackets", fontsize=8, color=MUTED, loc="left")
        handles, labels = grid[0, 0].get_legend_handles_labels()
        bars, of_bars = grid[0, 1].get_legend_handles_labels()
        figure.legend(
            [*handles, *bars], [*labels, *of_bars], loc="outside upper left", ncols=2, frameon=False,
            fontsize=7.5, labelcolor=INK,
        )  # fmt: skip
        grid[-1, 0].set_xlabel("downstream examples")
    keep = ["run_id", "algorithm", "length", "metric", "value", "standard_error", "n", "unit"]
    text = f"accuracy against examples, and trace beside the least possible, of {len(solutions)} solutions"
    caption = (
        "Left: share of all strings that are right once the output has been fitted to so many downstream "
        "examples, mean over training sets, bars ± one standard error; two neurons have the same in a model "
        "of any size m. The line is the theory for them, the dotted line a model that always says 0. "
        "Right: trace of the Hessian as a multiple of the least that m neurons can have without loss, "
        "4/(m√T), which for two is the √(4/T) of theorem 5.1; these values are exact."
    )
    if len(set(table["length"].fillna(0))) > len(lengths):
        caption += f" Lengths beyond the first {len(lengths)} are in the table."
    return Drawn(figure, "brackets", text, table[keep]), caption


def _transfer(axes: Axes, part: pd.DataFrame, solutions: Sequence[str], length: int) -> None:
    plain(axes)
    rows = part[(part["quantity"] == bracket_task.ACCURACY.name) & (part["examples"] > 0)]
    if rows.empty:
        return
    if length:
        fine = np.geomspace(rows["examples"].min(), rows["examples"].max(), 60)
        curve = [expected_accuracy(length, n) for n in fine]
        axes.plot(fine, curve, color=INK, linewidth=1.0, label="two neurons, by theory")
        axes.axhline(
            expected_accuracy(length, 0), color=MUTED, linestyle=(0, (1, 2)), linewidth=1.1, label="always 0"
        )
    for place, solution in enumerate(solutions):
        line = rows[rows["algorithm"] == solution].sort_values("examples")
        _line(
            axes, line["examples"], line["value"], line["standard_error"], **_look(place),
            linestyle="none", fill="none", label=_short(solution),
        )  # fmt: skip
    log_axis(axes.xaxis, list(rows["examples"]), lambda value: f"{value:g}")
    linear_axis(axes.yaxis, [0.0, *rows["value"], 1.0])
    axes.set_ylabel("strings that are right")


def _beside_the_bound(axes: Axes, part: pd.DataFrame, solutions: Sequence[str]) -> None:
    plain(axes)
    values = part.pivot_table(index="algorithm", columns="quantity", values="value")
    over = values[bracket_task.TRACE.name] / values[bracket_task.BOUND.name]
    axes.axhline(1, color=INK, linewidth=1.1, linestyle=(0, (4, 3)), label="least possible trace")
    for place, solution in enumerate(solutions):
        if solution in over.index:
            axes.plot(place, over[solution], linestyle="none", zorder=3, **_look(place))
    log_axis(axes.yaxis, [1.0, 10.0, *over])
    axes.set_xticks([])
    axes.set_xlim(-0.7, len(solutions) - 0.3)
    axes.set_ylabel("trace / least possible")


def _look(place: int) -> dict[str, Any]:
    return {"color": category(place), "marker": MARKERS[place % len(MARKERS)]}


def _short(solution: str) -> str:
    """Return a solution's name for a legend: `dyck_two_neurons-1120` as "two neurons, m = 1120"."""
    name, _, rest = solution.removeprefix("dyck_").replace("_", " ").partition("-")
    size, _, draw = rest.partition("-")
    size = size or ("2" if name == "two neurons" else "")
    return ", ".join([name, *([f"m = {size}"] if size.isdigit() else []), *([draw] if draw else [])])


def _legend(axes: Axes) -> None:
    axes.legend(frameon=False, fontsize=7.5, labelcolor=INK)


def _line(
    axes: Axes,
    x: pd.Series,
    y: pd.Series,
    error: pd.Series,
    *,
    color: str,
    marker: str,
    dash: int = 0,
    linestyle: str | None = None,
    fill: str | None = None,
    label: str | None = None,
) -> None:
    axes.errorbar(
        x, y, yerr=error.fillna(0), color=color, marker=marker, markerfacecolor=fill, label=label,
        linestyle=linestyle or DASHES[dash % len(DASHES)], elinewidth=1.0, capsize=2,
    )  # fmt: skip
