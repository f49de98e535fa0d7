"""Accuracy and flatness as the verdict compares them: beyond what the loss says of both."""

from __future__ import annotations

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from raysweep.report.axes import linear_axis, plain
from raysweep.report.data import Measurements, named_run
from raysweep.report.drawing import RC, WIDTH, Drawn, hover, mark_inside
from raysweep.report.figures import wrapped
from raysweep.report.style import INK, MARKERS, MUTED, SURFACE, series
from raysweep.report.verdict import Verdict, effect


def adjusted_figure(measured: Measurements, verdict: Verdict, *, name: str) -> Drawn | None:
    """Draw an added-variable plot of a correlation: residuals of ranks, and the line that they determine.

    The correlation of the dots is that of the verdict, and so is the slope of the line.  None where the
    verdict has no correlation, or where its checkpoints are not those of `measured`.
    """
    shown = verdict.adjusted
    if shown is None:
        return None
    rows = measured.checkpoints.set_index(["run_id", "step"], drop=False)
    places = rows.index.get_indexer(pd.MultiIndex.from_tuples(shown.keys))
    there = places >= 0
    if not (there.any() if measured.sample else there.all()):
        return None
    table = rows[["run_id", "model", "variant", "seed", "step"]].iloc[places[there]].reset_index(drop=True)
    table["x"], table["y"] = shown.x[there], shown.y[there]
    slope = float((shown.x * shown.y).sum() / (shown.x**2).sum())
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
        axes = figure.subplots()
        plain(axes)
        linear_axis(axes.xaxis, list(shown.x))
        linear_axis(axes.yaxis, list(shown.y))
        for line in (axes.axhline, axes.axvline):
            line(0, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
        for index, size in enumerate(measured.sizes):
            colour = series(index)
            for inner, variant in enumerate(measured.variants):
                part = table[(table["model"] == size) & (table["variant"] == variant)]
                marker = MARKERS[index % len(MARKERS)]
                axes.plot(
                    part["x"], part["y"], linestyle="none", marker=marker, markerfacecolor=colour,
                    markeredgecolor=colour,
                )  # fmt: skip
                mark_inside(axes, part["x"], part["y"], inner, SURFACE, marker=marker)
        ends = np.array([shown.x.min(), shown.x.max()])
        axes.plot(ends, slope * ends, color=INK, linewidth=1.6)
        axes.set_title(effect(verdict.main, verdict.unit), loc="left", fontsize=9, color=INK)
        beyond = "rank less that expected at its loss"
        axes.set_xlabel(f"{shown.flatness}:\n{beyond}")
        axes.set_ylabel(f"{wrapped(shown.accuracy, 40)}:\n{beyond}")
        hover(axes, table["x"], table["y"], _texts(table, shown.of))
    text = (
        f"{shown.accuracy} against {shown.flatness}, ranks less a smooth function of that of {shown.loss}, "
        f"{len(table)} dots with the line of {effect(verdict.main, verdict.unit)}"
    )
    return Drawn(figure, name, text, table.rename(columns={"x": "flatness", "y": "accuracy"}))


def caption(verdict: Verdict) -> str:
    """Return what the figure shows, in words."""
    shown = verdict.adjusted
    assert shown is not None
    each = {
        "checkpoint": "A dot is a checkpoint",
        "run": "A dot is the mean of a run, beside its configuration",
        "configuration": "A dot is the mean of a configuration",
    }[shown.of]
    return (
        f"What the verdict on flatness rests on. {each}; the axes are its ranks among {shown.among} "
        f"checkpoints, by {shown.flatness} and by {shown.accuracy}, less those that a smooth function of the "
        f"{shown.loss} gives: a dot at 40 has 40 checkpoints more below it than its loss lets expect. ρ is "
        "the correlation of the dots; its interval allows for dots of one configuration, which resemble each "
        "other. The legend is below."
    )


def _texts(table: pd.DataFrame, of: str) -> list[str]:
    """Return the text of each dot: its run and its places."""
    texts = []
    for row in table.to_dict("records"):
        step = f" · step {row['step']:,}" if of == "checkpoint" else f" · mean over its {of}"
        texts.append(f"{named_run(row)}{step}\nflatness: {row['x']:+.1f} places, accuracy: {row['y']:+.1f}")
    return texts
