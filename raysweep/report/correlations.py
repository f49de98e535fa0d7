"""Predictors of accuracy: rank correlations of trace and of excess loss with probe accuracy.

Over all checkpoints, and within the saturated band, where excess loss can say little and the claim is that
flatness still does.  The partial correlation asks the same at equal excess loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from raysweep.report.data import PROBE, Measurements
from raysweep.report.format import signed
from raysweep.report.statistics import Interval, cluster_bootstrap, partial

#: Fewest checkpoints and runs for a rank correlation.
LEAST_CHECKPOINTS, LEAST_RUNS = 6, 3
#: Fewest runs for a bootstrap interval: percentiles over fewer are far too narrow.
LEAST_RUNS_INTERVAL = 5


@dataclass(frozen=True)
class Correlations:
    """Correlations with one task's accuracy over one set of checkpoints; None: not enough data."""

    task: str
    band: str
    checkpoints: int
    runs: int
    excess_loss: Interval | None
    trace: Interval | None
    trace_given_loss: Interval | None


def correlations(measured: Measurements, *, tolerance: float, seed: int = 0) -> list[Correlations]:
    """Return a row for each task and band, "all" and "saturated" (excess loss at most `tolerance` nats)."""
    rows = []
    for task in measured.tasks:
        columns = ["excess_loss", "trace", PROBE + task]
        table = measured.has(*columns)
        values, runs = table[columns].to_numpy(dtype=float), table["run_id"].to_numpy(dtype=str)
        for band in ("all", "saturated"):
            chosen = values[:, 0] <= (tolerance if band == "saturated" else math.inf)
            rows.append(_row(task, band, runs[chosen], values[chosen], seed=seed))
    return rows


def _row(task: str, band: str, runs: np.ndarray, values: np.ndarray, *, seed: int) -> Correlations:
    """Correlate the columns excess loss, trace, accuracy of `values` [n, 3]."""
    count = len(np.unique(runs))
    if len(runs) < LEAST_CHECKPOINTS or count < LEAST_RUNS:
        return Correlations(task, band, len(runs), count, None, None, None)
    found = cluster_bootstrap(_with_accuracy, [values], runs, seed=seed, least_clusters=LEAST_RUNS_INTERVAL)
    known = [interval if not math.isnan(interval.value) else None for interval in found]
    return Correlations(task, band, len(runs), count, *known)


def _with_accuracy(values: np.ndarray) -> tuple[float, float, float]:
    """Return Spearman's rho of loss and accuracy, of trace and accuracy, and of these given loss."""
    # The ranks of each column once: this is called thousands of times.
    centred = stats.rankdata(values, axis=0) - (len(values) + 1) / 2
    products = centred.T @ centred
    scale = np.sqrt(np.diag(products))
    if not scale.all():
        return math.nan, math.nan, math.nan
    rho = np.clip(products / np.outer(scale, scale), -1, 1)
    return rho[0, 2], rho[1, 2], partial(rho[1, 2], rho[0, 1], rho[0, 2])


def _of_all(row: Correlations | None) -> str:
    """Return a sentence on all checkpoints of a task, "" where they too are not enough."""
    if row is None:
        return ""
    named = (
        (row.excess_loss, "for excess loss"),
        (row.trace, "for trace"),
        (row.trace_given_loss, "for trace at given excess loss"),
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
    """Say what the saturated checkpoints show, a sentence a task, in words that follow from the intervals.

    Where these are too few, the text covers all checkpoints, with excess loss beside the trace: there the
    two fall together, and neither alone says which one matters.
    """
    sentences = []
    everything = {row.task: row for row in rows if row.band == "all"}
    for row in rows:
        if row.band != "saturated":
            continue
        head = f"Task {row.task}, {row.checkpoints} saturated checkpoints of {row.runs} runs: "
        trace = row.trace
        if trace is None or trace.low is None or trace.high is None:
            sentences.append(f"{head}not enough data for an interval.{_of_all(everything.get(row.task))}")
            continue
        verdict = "no clear relation between trace and accuracy"
        if trace.high < 0:
            verdict = "flatter goes with better"
        elif trace.low > 0:
            verdict = "flatter goes with worse"
        sentences.append(
            f"{head}{verdict} (Spearman ρ of trace and accuracy {signed(trace.value)}, "
            f"95 % interval {signed(trace.low)} to {signed(trace.high)})."
        )
    return sentences
