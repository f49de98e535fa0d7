"""Figures along training with a line for each run: the training curve, and a measurement with intervals.

>>> thinned(pd.Series([1, 2, 3, 4, 8]), 3).tolist()
[0, 2, 4]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
import pandas as pd

from raysweep.evaluation.metric import NOT_TRUSTED, Description, error_key
from raysweep.report.axes import log_axis
from raysweep.report.data import Measurements, named_run
from raysweep.report.drawing import RC, Drawn, hover, told
from raysweep.report.figures import panels, reach, wrapped
from raysweep.report.format import count, number
from raysweep.report.style import DASHES, MARKERS, series
from raysweep.training.checkpoint import CurvePoint

#: Most points of a line that are drawn; its data has all.
_MOST = 80
#: Half the width of a 95 % interval in standard errors.
_HALF = 1.96


def thinned(steps: pd.Series, most: int) -> np.ndarray:
    """Return the places of at most `most` positive ascending steps, about evenly on a log axis."""
    logs = np.log(steps.to_numpy(dtype=float))
    wanted = np.linspace(logs[0], logs[-1], min(most, len(logs)))
    return np.unique(np.abs(logs[:, None] - wanted).argmin(axis=0))


def training_curves(measured: Measurements, curves: Mapping[str, Sequence[CurvePoint]]) -> Drawn | None:
    """Draw the training loss and the tokens a second of every run over steps; None without a curve.

    A run without measurements yet has no size, and is in the data alone.
    """
    rows = [
        {"run_id": run_id, **point.model_dump(include={"step", "loss", "tokens_per_second", "mfu"})}
        for run_id, points in curves.items()
        for point in points
    ]
    table = pd.DataFrame(rows, columns=["run_id", "step", "loss", "tokens_per_second", "mfu"])
    table = table.astype(dict.fromkeys(["loss", "tokens_per_second", "mfu"], float))
    known = measured.checkpoints.drop_duplicates("run_id").set_index("run_id")
    shown = table[table["run_id"].isin(known.index) & (table["loss"] > 0) & (table["step"] > 0)]
    if shown.empty:
        return None
    labels = {"loss": "training loss (nats)", "tokens_per_second": "tokens/s"}
    labels = {name: label for name, label in labels.items() if (shown[name] > 0).any()}
    with matplotlib.rc_context(RC):
        figure, stacked = panels(len(labels))
        for axes, (name, label) in zip(stacked, labels.items(), strict=True):
            part = shown[shown[name] > 0]
            log_axis(axes.yaxis, list(part[name]), count if name == "tokens_per_second" else number)
            ends: list[tuple[float, float]] = []
            texts = []
            for run_id, line in part.groupby("run_id", sort=False):
                run = known.loc[run_id]
                line = line.iloc[thinned(line["step"], _MOST)]
                colour, dash = _look(measured, run)
                axes.plot(line["step"], line[name], color=colour, linestyle=dash, linewidth=1.0, alpha=0.75)
                end = line.iloc[-1]
                ends.append((end["step"], end[name]))
                texts.append(f"{named_run(run)} · step {end['step']:,}\n{label}: {number(end[name])}")
            hover(axes, [x for x, _ in ends], [y for _, y in ends], texts)
            axes.set_ylabel(label)
        log_axis(stacked[-1].xaxis, list(shown["step"]), count)
        stacked[-1].set_xlabel("training steps")
        figure.align_ylabels(stacked)
    text = f"{' and '.join(labels.values())} over training steps, {shown['run_id'].nunique()} runs"
    return Drawn(figure, "curves", text, table)


def runs_along_training(measured: Measurements, metric: Description, *, name: str) -> Drawn | None:
    """Draw a metric of every run over steps with its 95 % interval, hollow where that is not trusted.

    None where it is nowhere positive, because the axes are log axes.
    """
    table = measured.has(metric.name)
    table = table[(table[metric.name] > 0) & (table["step"] > 0)]
    if table.empty:
        return None
    error = _HALF * table[error_key(metric.name)].fillna(0)
    keys = zip(table["run_id"], table["step"], strict=True)
    doubted = pd.Series([_doubted(measured, run_id, step, metric.name) for run_id, step in keys], table.index)
    with matplotlib.rc_context(RC):
        figure, [axes] = panels(1, height=3.0)
        log_axis(axes.yaxis, reach(table[metric.name], error, log=True))
        for _, line in table.groupby("run_id", sort=False):
            colour, dash = _look(measured, line.iloc[0])
            marker = MARKERS[measured.sizes.index(str(line["model"].iloc[0])) % len(MARKERS)]
            axes.errorbar(
                line["step"], line[metric.name], yerr=error[line.index], color=colour, linestyle=dash,
                linewidth=0.9, elinewidth=0.9, capsize=2, alpha=0.8,
            )  # fmt: skip
            for chosen, fill in ((~doubted[line.index], colour), (doubted[line.index], "none")):
                axes.plot(
                    line["step"][chosen], line[metric.name][chosen], linestyle="none", marker=marker,
                    markerfacecolor=fill, markeredgecolor=colour,
                )  # fmt: skip
        texts = told(measured, table, [metric.name])
        texts = [f"{text}, not trusted" if k else text for text, k in zip(texts, doubted, strict=True)]
        hover(axes, table["step"], table[metric.name], texts)
        log_axis(axes.xaxis, list(table["step"].astype(float)), count)
        axes.set(xlabel="training steps", ylabel=wrapped(metric.label, 40))
    columns = ["run_id", "model", "variant", "seed", "step", metric.name, error_key(metric.name)]
    text = f"{metric.label} over training steps with 95 % intervals, {table['run_id'].nunique()} runs"
    return Drawn(figure, name, text, table[columns].assign(trusted=~doubted))


def _doubted(measured: Measurements, run_id: str, step: int, metric: str) -> bool:
    return NOT_TRUSTED in measured.reservations.get((run_id, step, metric), "")


def _look(measured: Measurements, run: pd.Series) -> tuple[str, str | tuple[int, tuple[int, ...]]]:
    """Return colour and dash of a run: those of its size and variant."""
    variant = measured.variants.index(str(run["variant"]))
    return series(measured.sizes.index(str(run["model"]))), DASHES[variant % len(DASHES)]
