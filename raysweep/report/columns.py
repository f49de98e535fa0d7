"""The columns of a claim: its accuracies, its loss, and the checkpoints that have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from raysweep.evaluation.metric import Description, error_key
from raysweep.report.correlations import configurations
from raysweep.report.data import Measurements
from raysweep.report.matching import equal
from raysweep.report.paired import Key, loss_errors
from raysweep.report.regression import Array
from raysweep.report.sample import of_whole_groups
from raysweep.sweep.claims import About

if TYPE_CHECKING:
    import pandas as pd

#: Fewest checkpoints of a test.
LEAST_CHECKPOINTS = 6
#: Most checkpoints that are all compared with each other, and about how many are where there are more.
PAIRED, SAMPLE = 2000, 1000


def loss_of(measured: Measurements) -> Description | None:
    """Return the loss at which checkpoints are compared: the excess loss where it is known."""
    return measured.saturating or next(iter(measured.shown("loss")), None)


def accuracies_of(measured: Measurements, about: About) -> list[Description]:
    """Return the accuracies that a claim is about: all tasks of one kind of accuracy, or one of them."""
    shown = measured.shown("accuracy")
    kinds = [m for m in shown if about.accuracy is None or m.quantity.partition("/")[0] == about.accuracy]
    if not kinds:
        return []
    same = [m for m in kinds if m.quantity == kinds[0].quantity]
    return [m for m in same if about.task is None or str(m.of.get("task")) == about.task]


def named(accuracies: Sequence[Description]) -> str:
    """Return the accuracies of a claim for a reader."""
    first = accuracies[0]
    if len(accuracies) == 1:
        return first.title
    return f"the mean of {first.heading or first.name} over {', '.join(m.place for m in accuracies)}"


def places(values: Array, loss: Description) -> Array:
    """Return the coordinates of losses in which accuracy is smooth: the logarithm of the excess, if known."""
    above = values - (loss.least or 0.0)
    place = np.log(above) if loss.least is not None and (above > 0).all() else values
    spread = place.std()
    return (place - place.mean()) / (spread if spread > 0 else 1.0)


def numbers(column: pd.Series) -> Array:
    """Return a whole number for each value of a column [n]."""
    return np.unique(column.to_numpy(dtype=str), return_inverse=True)[1]


@dataclass(frozen=True)
class Compared:
    """Pairs of equal loss [m, m] among the checkpoints in `rows` [m], all `among` or a sample of them.

    `paired` says whether sentences were compared.
    """

    rows: Array
    pairs: Array
    paired: bool
    among: int

    def named(self, tolerance: float, loss: Description) -> str:
        """Return the name of the way by pairs."""
        how = "" if self.paired else ", losses as independent numbers"
        some = (
            ""
            if len(self.rows) == self.among
            else f", among {len(self.rows):,} of {self.among:,} checkpoints"
        )
        return f"{int(self.pairs.sum()) // 2} pairs within {tolerance:g} {loss.unit}{how}{some}"


class Columns:
    """The checkpoints that have all the metrics of a claim, as arrays [n]."""

    def __init__(
        self,
        measured: Measurements,
        accuracies: Sequence[Description],
        loss: Description,
        x: Description | None,
        chosen: pd.Series | None = None,
    ) -> None:
        names = [loss.name, *([x.name] if x else []), *(m.name for m in accuracies)]
        table = measured.has(*names)
        if chosen is not None:
            table = table[chosen.reindex(table.index)]
        self.table = table
        self.loss = table[loss.name].to_numpy(dtype=float)
        self.loss_errors = table[error_key(loss.name)].fillna(0).to_numpy(dtype=float)
        self.y = table[[m.name for m in accuracies]].to_numpy(dtype=float).mean(axis=1)
        self.runs = numbers(table["run_id"])
        self.configurations = configurations(table)
        self.keys: list[Key] = list(zip(table["run_id"], table["step"].astype(int), strict=True))

    @property
    def count(self) -> int:
        """Number of runs."""
        return len(np.unique(self.runs))

    def pairs(self, tolerance: float, draws: Mapping[Key, Array], *levels: Array) -> Compared:
        """Return which checkpoints are of equal loss.

        Of more than `PAIRED`, a sample is compared, of whole groups by the `levels` of `of_whole_groups`.
        """
        n = len(self.loss)
        rows = np.arange(n) if n <= PAIRED else of_whole_groups(SAMPLE, *levels, self.runs)
        errors, paired = loss_errors([self.keys[row] for row in rows], self.loss_errors[rows], draws)
        return Compared(rows, equal(self.loss[rows], errors, tolerance), paired, n)
