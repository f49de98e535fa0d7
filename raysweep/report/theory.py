"""The figures of the theory: gradient covariance against Hessian, SGD against its ODE, brackets.

Each is drawn from the tidy table by the names that its evaluation gives its metrics, and is None where there
are none of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raysweep.report.axes import linear_axis, log_axis, plain
from raysweep.report.data import Measurements
from raysweep.report.figures import RC, WIDTH, Drawn, embedded
from raysweep.report.style import DASHES, INK, MARKERS, MUTED, series

#: Panels of a figure; further runs are in its table.
_MOST_PANELS = 4


def theory_figures(frame: pd.DataFrame, measured: Measurements) -> list[tuple[str, Drawn, str, str]]:
    """Return the figures that a tidy table has data for: name, figure, heading and caption of each."""
    found = [
        (
            "bartlett",
            bartlett(measured),
            "Bartlett's identity",
            "Covariance of the gradient's noise against the Hessian, traces on the same inputs: equal at "
            "saturation. A dot is a checkpoint, lines follow training. Bars are one standard error.",
        ),
        (
            "descent",
            descent(frame),
            "Descent of the trace under SGD's noise",
            "From the saturated model: lines are the ODE's prediction, dots SGD, mean over replicates ± one "
            "standard error. Time is steps · lr², and the ODE knows it as a share of the batch size.",
        ),
        (
            "brackets",
            brackets(frame),
            "Solutions of the bracket task",
            "Left: strings that are right once the output has been fitted to so many examples, mean over "
            "training sets ± one standard error. Right: trace of each solution; a bar is the least possible.",
        ),
    ]
    return [(name, drawn, heading, text) for name, drawn, heading, text in found if drawn is not None]


def bartlett(measured: Measurements) -> Drawn | None:
    """Draw the ratio of both traces, and the traces, against excess loss: a line per run."""
    names = ("bartlett/excess_loss", "bartlett/ratio", "bartlett/covariance", "bartlett/hessian")
    table = measured.has(*names)
    table = table[table[names[0]] > 0]
    if table.empty:
        return None
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 5.0), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True)
        for axes in (upper, lower):
            plain(axes)
        upper.axhline(1, color=MUTED, linestyle=(0, (4, 3)), linewidth=1.1)
        for (model, _), run in table.groupby(["model", "run_id"], sort=False):
            index = measured.sizes.index(str(model))
            run = run.sort_values("step")
            marker = MARKERS[index % len(MARKERS)]
            _line(upper, run[names[0]], run[names[1]], run[f"{names[1]}_se"], series(index), marker)
            for dash, name in enumerate(names[2:]):
                _line(lower, run[names[0]], run[name], run[f"{name}_se"], series(index), marker, dash=dash)
        log_axis(upper.xaxis, list(table[names[0]]))
        linear_axis(upper.yaxis, [*table[names[1]], 1.0])
        traces = [*table[names[2]], *table[names[3]]]
        log_axis(lower.yaxis, [value for value in traces if value > 0])
        upper.set_ylabel("covariance / Hessian")
        lower.set(xlabel="excess loss (nats)", ylabel="trace: covariance –, Hessian - -")
        figure.align_ylabels([upper, lower])
        svg = embedded(figure, "bartlett")
    text = (
        f"ratio of gradient covariance to Hessian against excess loss on a log axis, {len(table)} checkpoints"
    )
    columns = [column for name in names for column in (name, f"{name}_se")]
    return Drawn(svg, text, table[["run_id", "model", "seed", "step", *columns]])


def descent(frame: pd.DataFrame) -> Drawn | None:
    """Draw the trace over time / batch size: a panel a checkpoint, a colour a rate, a marker a batch size."""
    rows = frame[frame["metric"].str.match("descent/(observed|predicted)/")]
    if rows.empty:
        return None
    table = pd.concat([rows, _fields(rows["metric"])], axis=1)
    table["time_per_batch"] = table["time"] / table["batch"]
    table["what"] = table["metric"].str.split("/").str[1]
    groups = list(table.groupby(["run_id", "step"], sort=False))
    rates = sorted(table["lr"].dropna().unique())
    batches = sorted(table["batch"].unique())
    with matplotlib.rc_context(RC):
        shown = groups[:_MOST_PANELS]
        figure = Figure(figsize=(WIDTH, 0.5 + 2.5 * len(shown)), layout="constrained")
        panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (_, part) in zip(panels, shown, strict=True):
            plain(axes)
            ode = part[part["what"] == "predicted"].sort_values("time_per_batch")
            axes.plot(ode["time_per_batch"], ode["value"], color=INK, linewidth=1.2, label="ODE")
            seen = part[part["what"] == "observed"]
            for (lr, batch), points in seen.groupby(["lr", "batch"]):
                axes.errorbar(
                    points["time_per_batch"],
                    points["value"],
                    yerr=points["standard_error"].fillna(0),
                    linestyle="none",
                    marker=MARKERS[batches.index(batch) % len(MARKERS)],
                    color=(INK, MUTED)[rates.index(lr) % 2],
                    markerfacecolor="none" if rates.index(lr) % 2 else INK,
                    elinewidth=0.8,
                    label=f"lr {lr:g}, batch {batch:g}",
                )
            linear_axis(axes.xaxis, [0.0, *part["time_per_batch"]])
            linear_axis(axes.yaxis, list(part["value"]))
            axes.set_ylabel("trace (nats)")
            axes.set_title(_place(part), fontsize=8, color=MUTED, loc="left")
        legend = panels[0].legend(frameon=False, fontsize=8, labelcolor=INK)
        legend.get_frame().set_facecolor("none")
        panels[-1].set_xlabel("steps · lr² / batch size")
        svg = embedded(figure, "descent")
    keep = ["run_id", "step", "what", "lr", "batch", "time", "time_per_batch", "value", "standard_error", "n"]
    text = f"trace under SGD beside the ODE's prediction, {len(rates)} rates and {len(batches)} batch sizes"
    return Drawn(svg, text, table[keep])


def _place(part: pd.DataFrame) -> str:
    """Return what model, seed and step the rows of a checkpoint are of."""
    row = part.iloc[0]
    return f"{row['model']}, seed {row['seed']}, step {row['step']:,}"


def brackets(frame: pd.DataFrame) -> Drawn | None:
    """Draw accuracy against examples, and the trace beside its bound: a panel a length, a line a solution."""
    rows = frame[frame["metric"].str.startswith("dyck/")]
    if rows.empty:
        return None
    table = rows.copy()
    table["length"] = table.get("language.length", pd.Series(np.nan, index=table.index))
    lengths = sorted(set(table["length"].fillna(0)))[:_MOST_PANELS]
    solutions = list(dict.fromkeys(table["algorithm"]))
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 0.5 + 2.6 * len(lengths)), layout="constrained")
        grid = figure.subplots(len(lengths), 2, squeeze=False, width_ratios=(3, 2))
        for (left, right), length in zip(grid, lengths, strict=True):
            part = table[table["length"].fillna(0) == length]
            _transfer(left, part, solutions)
            _beside_the_bound(right, part, solutions)
            if length:
                left.set_title(f"{length:g} brackets", fontsize=8, color=MUTED, loc="left")
        grid[0, 0].legend(frameon=False, fontsize=7, labelcolor=INK, loc="lower right")
        grid[-1, 0].set_xlabel("examples")
        svg = embedded(figure, "brackets")
    keep = ["run_id", "algorithm", "length", "metric", "value", "standard_error", "n", "unit"]
    text = f"accuracy against examples, and trace beside the least possible, of {len(solutions)} solutions"
    return Drawn(svg, text, table[keep])


def _transfer(axes: Axes, part: pd.DataFrame, solutions: Sequence[str]) -> None:
    plain(axes)
    rows = part[part["metric"].str.startswith("dyck/accuracy/")]
    rows = rows.assign(examples=_fields(rows["metric"])["examples"]).query("examples > 0")
    for place, solution in enumerate(solutions):
        line = rows[rows["algorithm"] == solution].sort_values("examples")
        colour, marker = _look(place)
        _line(
            axes,
            line["examples"],
            line["value"],
            line["standard_error"],
            colour,
            marker,
            dash=place,
            label=_short(solution),
        )
    log_axis(axes.xaxis, list(rows["examples"]), lambda value: f"{value:g}")
    linear_axis(axes.yaxis, [0.0, 1.0])
    axes.set_ylabel("strings that are right")


def _beside_the_bound(axes: Axes, part: pd.DataFrame, solutions: Sequence[str]) -> None:
    plain(axes)
    values = part.pivot_table(index="algorithm", columns="metric", values="value")
    for place, solution in enumerate(solutions):
        if solution in values.index:
            colour, marker = _look(place)
            axes.plot(place, values.loc[solution, "dyck/trace"], marker=marker, color=colour, zorder=3)
            axes.plot(
                [place - 0.35, place + 0.35],
                [values.loc[solution, "dyck/bound"]] * 2,
                color=MUTED,
                linewidth=1.4,
            )
    log_axis(axes.yaxis, [*values["dyck/trace"], *values["dyck/bound"]])
    axes.set_xticks([])
    axes.set_xlim(-0.7, len(solutions) - 0.3)
    axes.set_ylabel("trace")


def _look(place: int) -> tuple[str, str]:
    return (INK, MUTED)[place % 2], MARKERS[place % len(MARKERS)]


def _short(solution: str) -> str:
    return solution.removeprefix("dyck_").replace("_", " ")


def _line(
    axes: Axes,
    x: pd.Series,
    y: pd.Series,
    error: pd.Series,
    colour: str,
    marker: str,
    *,
    dash: int = 0,
    label: str | None = None,
) -> None:
    axes.errorbar(
        x,
        y,
        yerr=error.fillna(0),
        color=colour,
        marker=marker,
        linestyle=DASHES[dash % len(DASHES)],
        elinewidth=1.0,
        capsize=2,
        label=label,
    )


def _fields(names: pd.Series) -> pd.DataFrame:
    """Return the numbers in metric names such as `descent/observed/lr-0.1/batch-16/time-2`, a column each."""
    found = [
        {
            key: float(value)
            for key, dash, value in (part.partition("-") for part in name.split("/")[2:])
            if dash
        }
        for name in names
    ]
    return pd.DataFrame(found, index=names.index)
