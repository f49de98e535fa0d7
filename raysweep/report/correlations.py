"""Rank correlations of flatness and of loss with downstream accuracy.

They are taken over all checkpoints, and within the saturated band, where loss can say little and the claim is
that flatness still does.  The correlation given loss asks the same at equal loss.  Intervals are those of
`raysweep.report.association`: clusters are configurations, however many seeds each has.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from raysweep.evaluation.metric import Description
from raysweep.report.association import correlation, ranks, smooth
from raysweep.report.data import Measurements
from raysweep.report.regression import Array
from raysweep.report.statistics import Interval

if TYPE_CHECKING:
    import pandas as pd

#: Fewest checkpoints and runs for a rank correlation.
LEAST_CHECKPOINTS, LEAST_RUNS = 6, 3


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
    configurations: int
    of_loss: Interval | None
    of_flatness: Interval | None
    of_flatness_given_loss: Interval | None


def correlations(measured: Measurements, *, tolerance: float) -> list[Correlations]:
    """Return a row for each loss, flatness, accuracy and band.

    The bands are "all" and, for a loss whose least possible value is known, "saturated": at most `tolerance`
    above that value.
    """
    rows = []
    triples = product(measured.shown("loss"), measured.comparable(), measured.shown("accuracy"))
    for loss, flatness, accuracy in triples:
        table = measured.has(loss.name, flatness.name, accuracy.name)
        bands = {"all": np.full(len(table), True)}
        if loss.least is not None:
            bands["saturated"] = measured.saturated(table, tolerance).to_numpy(dtype=bool)
        for band, chosen in bands.items():
            part = table[chosen]
            runs, clusters = part["run_id"].nunique(), configurations(part)
            values = part[[loss.name, flatness.name, accuracy.name]].to_numpy(dtype=float)
            found: list[Interval | None] = [None, None, None]
            if len(part) >= LEAST_CHECKPOINTS and runs >= LEAST_RUNS:
                found = _with_accuracy(values, clusters)
            counts = len(part), runs, len(np.unique(clusters))
            rows.append(Correlations(measured.named(accuracy), loss, flatness, band, *counts, *found))
    return rows


def configurations(table: pd.DataFrame) -> Array:
    """Return the number of each checkpoint's configuration [n]: everything of its run but the seed."""
    return np.unique((table["model"] + "\0" + table["variant"]).to_numpy(dtype=str), return_inverse=True)[1]


def _with_accuracy(values: Array, clusters: Array) -> list[Interval | None]:
    """Correlate accuracy with loss, with flatness, and with flatness given loss: the columns of [n, 3]."""
    loss, flatness, accuracy = (ranks(column) for column in values.T)
    alone = np.ones((len(values), 1))
    found: list[Interval | None] = []
    for x, design in ((loss, alone), (flatness, alone), (flatness, smooth(loss))):
        one = correlation(x, accuracy, design, clusters)
        value, low, high = float(one.value), float(one.low), float(one.high)
        known = not np.isnan(low)
        interval = Interval(value, low if known else None, high if known else None, len(values))
        found.append(None if np.isnan(value) else interval)
    return found
