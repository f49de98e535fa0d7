"""The figure of the descent: the trace under SGD's noise at several rates and batch sizes, and the ODE.

Seeds are put together: every trace is a share of the trace of its own saturated model at the start.  Dots are
means over seeds with their standard error, which for a single seed is over its replicates.
"""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raysweep.evaluation.descent import OBSERVED, PREDICTED, RATIO
from raysweep.evaluation.metric import error_key
from raysweep.report.axes import linear_axis, log_axis, plain
from raysweep.report.data import at
from raysweep.report.drawing import RC, WIDTH, Drawn
from raysweep.report.statistics import mean_and_error
from raysweep.report.style import CATEGORIES, INK, MARKERS, category
from raysweep.sweep.tidy import FIXED

_SETTING = ["lr", "batch"]
_WHAT = {OBSERVED.name: "observed", PREDICTED.name: "predicted", RATIO.name: "ratio"}
_SHARE_ERROR = error_key("share")


def descent(frame: pd.DataFrame) -> tuple[Drawn, str] | None:
    """Draw the fall over steps, the trace over time / batch size, and the fall as a share of the ODE's.

    A colour is a rate, a marker a batch size.  Where a table holds several models, steps or other
    axes, the first is drawn and the others are in the table.
    """
    table = at(frame, OBSERVED, PREDICTED, RATIO)
    if table.empty:
        return None
    table = table.reindex(columns=list(dict.fromkeys([*table, *_SETTING, "time"])))
    table["what"] = table["quantity"].map(_WHAT)
    table["time_per_batch"] = table["time"] / table["batch"]
    table = _relative(table)
    # Seeds of one setting belong together; runs that differ in an axis do not.
    apart = [column for column in frame.columns if column not in FIXED]
    groups = list(table.groupby(["model", "algorithm", *apart, "step"], sort=False, dropna=False))
    part = groups[0][1]
    seeds = part["run_id"].nunique()
    seen = _over_seeds(part[part["what"] == "observed"], "share", [*_SETTING, "time", "time_per_batch"])
    ode = _over_seeds(part[part["what"] == "predicted"], "share", ["batch", "time", "time_per_batch"])
    ratios = _over_seeds(part[part["what"] == "ratio"], "value", _SETTING)
    look = _looks(seen)
    count = 3 if len(ratios) else 2
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 0.7 + 2.4 * count), layout="constrained")
        panels = figure.subplots(count, 1, squeeze=False)[:, 0]
        for axes in panels:
            plain(axes)
        hidden = _by_steps(panels[0], seen, ode, look)
        _by_time(panels[1], seen, ode, look)
        if len(ratios):
            _by_ratio(panels[2], ratios, look)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside upper left", ncols=2, frameon=False, fontsize=7.5, labelcolor=INK
        )
        figure.align_ylabels(panels)
    rates, batches = seen["lr"].nunique(), seen["batch"].nunique()
    text = f"trace under SGD beside the ODE's prediction, {rates} rates and {batches} batch sizes"
    of = f"{part['model'].iloc[0]}, step {part['step'].iloc[0]:,}"
    caption = _caption(of, seeds, len(ratios), len(look) - len(ratios), hidden, len(groups) - 1)
    keep = ["run_id", "seed", "step", "what", *_SETTING, "time", "time_per_batch", "value", "standard_error"]
    return Drawn(figure, "descent", text, table[[*keep, "n", "share", _SHARE_ERROR]]), caption


def _caption(model: str, seeds: int, ratios: int, without: int, hidden: int, others: int) -> str:
    bars = f"over {seeds} seeds" if seeds > 1 else "over replicates of one seed"
    parts = [
        f"SGD from saturated models ({model}); dots are means, bars ± one standard error {bars}, lines the "
        "ODE of theorem 3.3. Top: how much the trace has fallen, as a share of that at the start, by steps: "
        "with twice the rate it falls as far in a quarter of the steps, with four times the batch in four "
        "times as many. Middle: the trace over steps · lr² / batch size, where all should lie on one line."
    ]
    if seeds > 1:
        parts.append("There, bars show the spread over seeds, for dots and line.")
    if ratios:
        parts.append(
            "Bottom: the observed fall at the end as a share of the predicted one, seed by seed. By the "
            "theorem it tends to 1 as the rate goes to 0."
        )
        if without:
            parts.append(f"{without} of the settings have none: their predicted fall is too small.")
    else:
        parts.append(
            "The ratio of both falls is left out: the predicted fall is too small; take a longer time, or "
            "smaller batches."
        )
    if hidden:
        parts.append(f"Not shown at the top: {hidden} dots without a fall, which a log axis cannot show.")
    if others:
        parts.append(f"Further settings of model, language or step, {others} in all, are in the table.")
    return " ".join(parts)


def _relative(table: pd.DataFrame) -> pd.DataFrame:
    """Add every trace as a share of the trace at time 0, and its standard error over replicates."""
    first = table[(table["what"] == "predicted") & (table["time"] == 0)]
    start = first.groupby(["run_id", "step"])["value"].first()
    of = pd.MultiIndex.from_frame(table[["run_id", "step"]])
    start = start.reindex(of).to_numpy()
    traces = table["what"] != "ratio"
    share = (table["value"] / start).where(traces)
    return table.assign(**{"share": share, _SHARE_ERROR: (table["standard_error"] / start).where(traces)})


def _over_seeds(rows: pd.DataFrame, column: str, keys: list[str]) -> pd.DataFrame:
    """Return mean and standard error over seeds; a single seed keeps its own error."""
    found = []
    own = _SHARE_ERROR if column == "share" else "standard_error"
    for values, group in rows.groupby(keys, sort=True):
        mean, error = mean_and_error(group[column].to_numpy(dtype=float))
        if len(group) == 1:
            error = float(group[own].iloc[0])
        row = dict(zip(keys, values, strict=True)) | {"mean": mean}
        found.append(row | {"error": 0.0 if error is None or np.isnan(error) else error})
    return pd.DataFrame(found, columns=[*keys, "mean", "error"])


def _looks(seen: pd.DataFrame) -> dict[tuple[float, float], dict[str, Any]]:
    """Return colour, marker and label of each setting, no two of them alike."""
    rates, batches = sorted(seen["lr"].unique()), sorted(seen["batch"].unique())
    return {
        (lr, batch): {
            "color": category(i),
            # Colours come again after some rates: other markers then distinguish the rates.
            "marker": MARKERS[(j + i // len(CATEGORIES) * len(batches)) % len(MARKERS)],
            "label": f"lr {lr:g}, batch {batch:g}",
        }
        for i, lr in enumerate(rates)
        for j, batch in enumerate(batches)
    }


def _dots(axes: Axes, x: Any, points: pd.DataFrame, look: dict[str, Any]) -> None:
    axes.errorbar(
        x, points["mean"], yerr=points["error"], linestyle="none", markerfacecolor="none", elinewidth=0.9,
        capsize=2, zorder=3, **look,
    )  # fmt: skip


def _by_steps(axes: Axes, seen: pd.DataFrame, ode: pd.DataFrame, look: dict[Any, dict[str, Any]]) -> int:
    """Draw the falls over steps; return how many dots a log axis cannot show."""
    steps: list[float] = []
    falls: list[float] = []
    hidden = 0
    for (lr, batch), points in seen[seen["time"] > 0].groupby(_SETTING):
        hidden += int((points["mean"] >= 1).sum())
        points = points[points["mean"] < 1]
        x = points["time"] / lr**2
        # Bars that reach below zero end at a third of their value.
        fall = 1 - points["mean"]
        low = np.minimum(points["error"], fall * 2 / 3)
        axes.errorbar(
            x, fall, yerr=[low, points["error"]], linestyle="none", markerfacecolor="none", elinewidth=0.9,
            capsize=2, zorder=3, **look[lr, batch],
        )  # fmt: skip
        line = ode[(ode["batch"] == batch) & (ode["time"] > 0) & (ode["mean"] < 1)]
        axes.plot(line["time"] / lr**2, 1 - line["mean"], color=look[lr, batch]["color"], linewidth=1.0)
        steps += [*x, *(line["time"] / lr**2)]
        falls += [*fall, *(1 - line["mean"])]
    axes.plot([], [], color=INK, linewidth=1.2, label="ODE of theorem 3.3")
    if falls:
        log_axis(axes.xaxis, steps)
        log_axis(axes.yaxis, falls)
    axes.set(xlabel="steps of SGD", ylabel="fall of the trace, share")
    return hidden


def _by_time(axes: Axes, seen: pd.DataFrame, ode: pd.DataFrame, look: dict[Any, dict[str, Any]]) -> None:
    line = ode.sort_values("time_per_batch")
    axes.plot(line["time_per_batch"], line["mean"], color=INK, linewidth=1.2)
    for setting, points in seen.groupby(_SETTING):
        _dots(axes, points["time_per_batch"], points, look[setting])
    linear_axis(axes.xaxis, [0.0, *seen["time_per_batch"]])
    linear_axis(axes.yaxis, [*seen["mean"], *ode["mean"]])
    axes.set(xlabel="steps · lr² / batch size", ylabel="trace / trace at start")


def _by_ratio(axes: Axes, ratios: pd.DataFrame, look: dict[Any, dict[str, Any]]) -> None:
    rates, batches = sorted(ratios["lr"].unique()), sorted(ratios["batch"].unique())
    axes.axhline(1, color=INK, linewidth=1.2)
    for (lr, batch), points in ratios.groupby(_SETTING):
        # Beside each other, not one over the other.
        beside = (batches.index(batch) - (len(batches) - 1) / 2) * 0.02 * rates[-1]
        _dots(axes, lr + beside, points, look[lr, batch])
    linear_axis(axes.yaxis, [1.0, *(ratios["mean"] - ratios["error"]), *(ratios["mean"] + ratios["error"])])
    # The theorem is about the left end.
    linear_axis(axes.xaxis, [0.0, *rates])
    axes.set(xlabel="learning rate", ylabel="observed / predicted")
