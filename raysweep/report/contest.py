"""The contest of predictors: the loss and every measure of flatness, in one analysis.

Each measure has its rank correlation with accuracy at equal loss (`raysweep.report.association`), with
p-values corrected for the number of measures (Holm), and the share of the variance of accuracy that it
predicts in runs it has not seen:

    R² = 1 − Σ_r Σ_{i in r} (y_i − ŷ_i^(−r))² / Σ_r Σ_{i in r} (y_i − ȳ^(−r))²

where ŷ^(−r) is the least-squares fit to all runs but r of a quadratic function of the log loss and the log of
the measure, and ȳ^(−r) their mean (M. Stone, "Cross-validatory choice and assessment of statistical
predictions", Journal of the Royal Statistical Society B 36, 1974).  All are judged on the same checkpoints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from html import escape

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from raysweep.evaluation.metric import Description
from raysweep.report.association import DENSE, at_level, correlation, ranks
from raysweep.report.axes import plain
from raysweep.report.columns import LEAST_CHECKPOINTS, loss_of, places
from raysweep.report.correlations import configurations
from raysweep.report.data import Measurements
from raysweep.report.drawing import RC, WIDTH, Drawn
from raysweep.report.format import signed
from raysweep.report.many import Parts, orthonormal
from raysweep.report.parts import capital, figure, section, small
from raysweep.report.regression import Array
from raysweep.report.statistics import holm
from raysweep.report.style import INK, MUTED
from raysweep.report.tables import table
from raysweep.report.verdict import ALPHA

#: A measure takes part if it is known at this share of the checkpoints.
TAKES_PART = 0.5


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A predictor of accuracy: its correlation at equal loss with interval and p-values, and its R².

    The loss stands alone, so its correlation is the plain one.  `gain` is R² less that of the loss alone.
    Numbers are nan where there is too little data.
    """

    name: str
    title: str
    value: float
    low: float
    high: float
    p: float
    p_corrected: float
    r_squared: float
    gain: float
    checkpoints: int
    runs: int


def contest(measured: Measurements) -> list[Contestant]:
    """Return the loss, then the measures of flatness, best prediction first; [] where there is no contest.

    The accuracy is the mean over the tasks of the first kind of accuracy.
    """
    loss, accuracies = loss_of(measured), measured.shown("accuracy")
    if loss is None or not accuracies:
        return []
    names = [m.name for m in accuracies if m.quantity == accuracies[0].quantity]
    rows = measured.has(loss.name, *names)
    taking = [m for m in _measures(measured) if rows[m.name].notna().mean() >= TAKES_PART]
    rows = rows.dropna(subset=[m.name for m in taking])
    runs = rows["run_id"].to_numpy(dtype=str)
    if not taking or len(rows) < LEAST_CHECKPOINTS or len(np.unique(runs)) < 3:
        return []
    y = rows[names].to_numpy(dtype=float).mean(axis=1)
    held, clusters = rows[loss.name].to_numpy(dtype=float), configurations(rows)
    place = places(held, loss)
    base = np.column_stack([np.ones(len(y)), place, place**2])
    alone = r_squared(base, y, runs)
    counts = {"checkpoints": len(rows), "runs": len(np.unique(runs))}
    first = correlation(ranks(held), ranks(y), np.ones((len(y), 1)), clusters)
    found = [
        Contestant(
            name=loss.name, title=f"{loss.title}, alone", value=float(first.value), low=float(first.low),
            high=float(first.high), p=float(first.p), p_corrected=math.nan, r_squared=alone, gain=0.0,
            **counts,
        )
    ]  # fmt: skip
    for metric in taking:
        x = rows[metric.name].to_numpy(dtype=float)
        one = at_level(x, y, held, clusters, clusters, "all")
        predicted = r_squared(np.column_stack([base, np.log(x) if (x > 0).all() else x]), y, runs)
        found.append(
            Contestant(
                name=metric.name, title=metric.title, value=float(one.value), low=float(one.low),
                high=float(one.high), p=float(one.p), p_corrected=math.nan, r_squared=predicted,
                gain=predicted - alone, **counts,
            )
        )  # fmt: skip
    corrected = _corrected(found[1:])
    return [found[0], *sorted(corrected, key=lambda contestant: -contestant.r_squared)]


def _corrected(found: list[Contestant]) -> list[Contestant]:
    """Return measures with their p-values corrected for the number of those that were tested."""
    tested = [k for k, one in enumerate(found) if not math.isnan(one.p)]
    p = dict(zip(tested, holm([found[k].p for k in tested]), strict=True))
    return [replace(one, p_corrected=p.get(k, math.nan)) for k, one in enumerate(found)]


def _measures(measured: Measurements) -> list[Description]:
    """Return the measures of flatness as wholes: no parts, and of eigenvalues the largest."""
    every = [m for m in measured.metrics.values() if m.kind == "flatness" and m.better == "less"]
    kept = [m for m in every if "group" not in m.of and m.of.get("rank", 1) == 1]
    return [m for m in kept if m.name in measured.checkpoints]


def r_squared(design: Array, y: Array, runs: Array) -> float:
    """Return the R² of predictions of y [n] from a design [n, p], each run predicted from all others."""
    if len(y) > DENSE:
        return _r_squared_of_many(design, y, Parts(runs))
    wrong = spread = 0.0
    for run in np.unique(runs):
        out = runs == run
        weights = np.linalg.lstsq(design[~out], y[~out], rcond=None)[0]
        wrong += float(((y[out] - design[out] @ weights) ** 2).sum())
        spread += float(((y[out] - y[~out].mean()) ** 2).sum())
    return 1 - wrong / spread if spread > 0 else math.nan


def _r_squared_of_many(design: Array, y: Array, runs: Parts) -> float:
    """Return `r_squared` by sums over runs: those of all runs less those of each."""
    basis = orthonormal(design, float(np.linalg.norm(design)))
    squares = runs.sums(basis[:, :, None] * basis[:, None, :])
    products, of_y = runs.sums(basis * y[:, None]), runs.sums(y)
    others = squares.sum(axis=0) - squares
    weights = np.linalg.solve(others, (products.sum(axis=0) - products)[..., None])[..., 0]
    means = (of_y.sum() - of_y) / (len(y) - runs.sizes)
    wrong = float(((y - (basis * weights[runs.of]).sum(axis=1)) ** 2).sum())
    spread = float(((y - means[runs.of]) ** 2).sum())
    return 1 - wrong / spread if spread > 0 else math.nan


def contest_section(measured: Measurements, name: str) -> str:
    """Return the contest as HTML, a figure and a table; "" with fewer than two measures of flatness.

    `name` is that of the sweep, for the file of the figure's data.
    """
    found = contest(measured)
    if len(found) < 3:
        return ""
    note = (
        f"All on the same {found[0].checkpoints} checkpoints of {found[0].runs} runs. ρ is the rank "
        "correlation with accuracy (the mean over tasks) at equal loss, with its 95 % interval; that of the "
        "loss is plain. p-values are corrected for the number of measures (Holm). R² is the share of the "
        "variance of accuracy in a run that loss and measure predict together from all other runs; below "
        "zero, a prediction is worse than the mean."
    )
    rows = [
        [
            escape(capital(one.title)),
            _signed(one.value, one.low, one.high),
            "–" if math.isnan(one.p_corrected) else f"{one.p_corrected:.2g}",
            "–" if math.isnan(one.r_squared) else signed(one.r_squared),
            "–" if place == 0 or math.isnan(one.gain) else signed(one.gain),
        ]
        for place, one in enumerate(found)
    ]
    headings = ["measure", "ρ at equal loss", "p (Holm)", "R², unseen runs", "gain over the loss"]
    drawn = figure(contest_figure(found), f"{name}-contest.csv", "")
    body = f'{small(note)}<div class="pair">{drawn}</div>{table(headings, rows)}'
    return section("Which measure predicts accuracy", body)


def _signed(value: float, low: float, high: float) -> str:
    if math.isnan(value):
        return "–"
    if math.isnan(low):
        return f'{signed(value)} <span class="note">[not enough data]</span>'
    return f'{signed(value)} <span class="note">[{signed(low)}, {signed(high)}]</span>'


def contest_figure(found: list[Contestant]) -> Drawn:
    """Draw the correlation of each measure at equal loss with its interval, one line each."""
    measures = found[1:]
    with matplotlib.rc_context(RC):
        drawn = Figure(figsize=(WIDTH, 0.7 + 0.28 * len(measures)), layout="constrained")
        axes = drawn.subplots()
        plain(axes)
        for place, one in enumerate(reversed(measures)):
            sure = one.p_corrected <= ALPHA
            if not math.isnan(one.low):
                axes.plot([one.low, one.high], [place, place], color=INK, linewidth=1.4)
            axes.plot(
                [one.value], [place], marker="o", color=INK, markerfacecolor=INK if sure else "none",
                linestyle="none",
            )  # fmt: skip
        axes.axvline(0, color=MUTED, linewidth=0.8)
        axes.set(xlim=(-1, 1), ylim=(-0.6, len(measures) - 0.4), xlabel="ρ with accuracy at equal loss")
        axes.set_yticks(range(len(measures)), [one.title for one in reversed(measures)])
    text = "Rank correlation of each measure of flatness with accuracy at equal loss, filled where sure"
    return Drawn(drawn, "contest", text, pd.DataFrame([vars(one) for one in found]))
