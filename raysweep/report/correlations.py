"""Predictors of accuracy: rank correlations of flatness and of loss with downstream accuracy.

They are taken over all checkpoints, and within the saturated band, where loss can say little and the claim is
that flatness still does.  The partial correlation asks the same at equal loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy import stats

from raysweep.evaluation.metric import Description
from raysweep.report.data import Measurements
from raysweep.report.format import signed
from raysweep.report.statistics import Interval, cluster_bootstrap, partial

#: Fewest checkpoints and runs for a rank correlation.
LEAST_CHECKPOINTS, LEAST_RUNS = 6, 3
#: Fewest runs for a bootstrap interval: percentiles over fewer are far too narrow.
LEAST_RUNS_INTERVAL = 5


@dataclass(frozen=True)
class Correlations:
    """Correlations of one accuracy with a loss and a measure of flatness over one set of checkpoints.

    `task` is what the page calls the accuracy.  An interval is None where there is not enough data.
    """

    task: str
    loss: Description
    flatness: Description
    band: str
    checkpoints: int
    runs: int
    of_loss: Interval | None
    of_flatness: Interval | None
    of_flatness_given_loss: Interval | None


def correlations(measured: Measurements, *, tolerance: float, seed: int = 0) -> list[Correlations]:
    """Return a row for each loss, flatness, accuracy and band.

    The bands are "all" and, for a loss whose least possible value is known, "saturated": at most `tolerance`
    above that value.
    """
    rows = []
    triples = product(measured.shown("loss"), measured.shown("flatness"), measured.shown("accuracy"))
    for loss, flatness, accuracy in triples:
        columns = [loss.name, flatness.name, accuracy.name]
        table = measured.has(*columns)
        values, runs = table[columns].to_numpy(dtype=float), table["run_id"].to_numpy(dtype=str)
        bands = {"all": np.full(len(values), True)}
        if loss.least is not None:
            bands["saturated"] = values[:, 0] <= loss.least + tolerance
        for band, chosen in bands.items():
            known = runs[chosen]
            intervals = _intervals(known, values[chosen], seed=seed)
            counts = len(known), len(np.unique(known))
            rows.append(Correlations(measured.named(accuracy), loss, flatness, band, *counts, *intervals))
    return rows


def _intervals(runs: np.ndarray, values: np.ndarray, *, seed: int) -> list[Interval | None]:
    """Correlate the columns loss, flatness, accuracy of `values` [n, 3]."""
    if len(runs) < LEAST_CHECKPOINTS or len(np.unique(runs)) < LEAST_RUNS:
        return [None, None, None]
    found = cluster_bootstrap(_with_accuracy, [values], runs, seed=seed, least_clusters=LEAST_RUNS_INTERVAL)
    return [interval if not math.isnan(interval.value) else None for interval in found]


def _with_accuracy(values: np.ndarray) -> tuple[float, float, float]:
    """Return Spearman's rho of accuracy with loss, with flatness, and with flatness given loss."""
    # Each column is ranked once: the bootstrap calls this thousands of times.
    centred = stats.rankdata(values, axis=0) - (len(values) + 1) / 2
    products = centred.T @ centred
    scale = np.sqrt(np.diag(products))
    if not scale.all():
        return math.nan, math.nan, math.nan
    rho = np.clip(products / np.outer(scale, scale), -1, 1)
    return rho[0, 2], rho[1, 2], partial(rho[1, 2], rho[0, 1], rho[0, 2])


def _of_all(row: Correlations | None) -> str:
    """Return a sentence on all checkpoints of a task, "" where they are not enough either."""
    if row is None:
        return ""
    loss, flatness = row.loss.title, row.flatness.title
    named = (
        (row.of_loss, f"for {loss}"),
        (row.of_flatness, f"for {flatness}"),
        (row.of_flatness_given_loss, f"for {flatness} at given {loss}"),
    )
    parts = [
        f"{signed(found.value)} [{signed(found.low)}, {signed(found.high)}] {what}"
        for found, what in named
        if found is not None and found.low is not None and found.high is not None
    ]
    if not parts:
        return ""
    return (
        f" Over all {row.checkpoints} checkpoints of {row.runs} runs, Spearman ρ with accuracy is "
        f"{', '.join(parts)} (95 % intervals)."
    )


def findings(rows: list[Correlations]) -> list[str]:
    """Return a sentence on the saturated checkpoints of each task, in words that follow from the intervals.

    Where these are too few, the sentence covers all checkpoints, with loss beside flatness: there the two
    fall together, and neither alone says which one matters.
    """
    sentences = []
    everything = {(row.task, row.loss.name, row.flatness.name): row for row in rows if row.band == "all"}
    for row in rows:
        if row.band != "saturated":
            continue
        head = f"Task {row.task}, {row.checkpoints} saturated checkpoints of {row.runs} runs: "
        found, flatness = row.of_flatness, row.flatness.title
        if found is None or found.low is None or found.high is None:
            whole = _of_all(everything.get((row.task, row.loss.name, row.flatness.name)))
            sentences.append(f"{head}not enough data for an interval.{whole}")
            continue
        sentences.append(
            f"{head}{_verdict(found.low, found.high, row.flatness)} (Spearman ρ of {flatness} and accuracy "
            f"{signed(found.value)}, 95 % interval {signed(found.low)} to {signed(found.high)})."
        )
    return sentences


def _verdict(low: float, high: float, flatness: Description) -> str:
    """Return what an interval of the correlation of flatness and accuracy says."""
    if low <= 0 <= high or flatness.better is None:
        return f"no clear relation between {flatness.title} and accuracy"
    flatter_is_better = high < 0 if flatness.better == "less" else low > 0
    return "flatter goes with better" if flatter_is_better else "flatter goes with worse"
