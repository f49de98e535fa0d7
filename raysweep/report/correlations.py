"""What predicts accuracy: rank correlations of trace and of excess loss with probe accuracy.

Over all checkpoints, and within the saturated band, where excess loss can say little and the claim is that
flatness still does.  The partial correlation asks the same at equal excess loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from raysweep.report.data import PROBE, Measurements
from raysweep.report.statistics import Interval, cluster_bootstrap, partial_spearman, spearman

#: Fewest checkpoints and runs of which a rank correlation is reported.
LEAST_CHECKPOINTS, LEAST_RUNS = 6, 3
#: Fewest runs of which a bootstrap interval is reported: percentiles over fewer are far too narrow.
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
        for band in ("all", "saturated"):
            table = measured.has("excess_loss", "trace", PROBE + task)
            if band == "saturated":
                table = table[table["excess_loss"] <= tolerance]
            rows.append(
                _row(
                    task,
                    band,
                    table["run_id"].to_numpy(dtype=str) if len(table) else np.empty(0, dtype=str),
                    *(
                        table[c].to_numpy(dtype=float) if len(table) else np.empty(0)
                        for c in ("excess_loss", "trace", PROBE + task)
                    ),
                    seed=seed,
                )
            )
    return rows


def _row(
    task: str,
    band: str,
    runs: np.ndarray,
    loss: np.ndarray,
    trace: np.ndarray,
    accuracy: np.ndarray,
    *,
    seed: int,
) -> Correlations:
    count = len(np.unique(runs))
    if len(loss) < LEAST_CHECKPOINTS or count < LEAST_RUNS:
        return Correlations(task, band, len(loss), count, None, None, None)

    def all_three(loss: np.ndarray, trace: np.ndarray, accuracy: np.ndarray) -> list[float]:
        return [spearman(loss, accuracy), spearman(trace, accuracy), partial_spearman(trace, accuracy, loss)]

    found = cluster_bootstrap(
        all_three, [loss, trace, accuracy], runs, seed=seed, least_clusters=LEAST_RUNS_INTERVAL
    )
    known = [interval if not math.isnan(interval.value) else None for interval in found]
    return Correlations(task, band, len(loss), count, *known)
