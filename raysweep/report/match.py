"""Pairs of checkpoints at equal loss: what differs between them, and by how much.

Intervals are those of measuring: of the same two checkpoints, on other sentences, inputs or probe seeds.
They do not say what other seeds of training would give; the claims do (`raysweep.report.claims`).

A pair is the more telling, the surer both its differences are: it is ranked by the smaller of |Δ flatness|
and |Δ accuracy| in standard errors, the accuracy with the largest of these.  The first ones are chosen by
what was measured, so their intervals, which are single ones, hold less often than they state
(`raysweep.bench.statistics.pairs`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from raysweep.errors import ConfigError
from raysweep.evaluation.metric import Description, error_key
from raysweep.report.columns import loss_of, numbers
from raysweep.report.correlations import configurations
from raysweep.report.data import Measurements
from raysweep.report.matching import equal
from raysweep.report.paired import Apart, Draws, Key, LossDraws, loss_errors
from raysweep.report.regression import Array
from raysweep.report.sample import of_whole_groups
from raysweep.sweep.tidy import SEEDS

if TYPE_CHECKING:
    import pandas as pd

    from raysweep.sweep import Sweep

#: Difference of two losses, in nats, up to which they are equal, where nothing else is said.
EQUAL = 0.002
#: Pairs that are shown, where nothing else is said.
SHOWN = 20
#: Most checkpoints that are compared with each other; of more, a sample is.
COMPARED = 3000


@dataclass(frozen=True, kw_only=True)
class Match:
    """Two checkpoints of equal loss, the flatter one second, and the differences second minus first.

    `differs` has the values of both by what differs: size, steps, algorithm, seed or another axis, and `same`
    the values of what does not.  `differences` are by metric, the loss first.
    """

    first: Key
    second: Key
    same: Mapping[str, Any]
    differs: Mapping[str, tuple[Any, Any]]
    differences: Mapping[str, Apart] = field(default_factory=dict)
    telling: float = 0.0

    def encode(self) -> dict[str, Any]:
        """Return plain data for a program."""
        return {
            "first": {"run_id": self.first[0], "step": self.first[1]},
            "second": {"run_id": self.second[0], "step": self.second[1]},
            "differs": {name: list(values) for name, values in self.differs.items()},
            "differences": {
                name: {
                    "value": apart.value,
                    "low": _plain(apart.interval[0]),
                    "high": _plain(apart.interval[1]),
                    "paired": apart.paired,
                }
                for name, apart in self.differences.items()
            },
            "telling": self.telling,
        }


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value


@dataclass(frozen=True)
class Matches:
    """The most telling pairs of a sweep, and the number of all pairs at equal loss.

    They are pairs of `compared` checkpoints out of `among`.
    """

    shown: list[Match]
    total: int
    compared: int = 0
    among: int = 0


def matches(
    sweep: Sweep,
    measured: Measurements,
    *,
    tolerance: float = EQUAL,
    task: str | None = None,
    shown: int = SHOWN,
) -> Matches:
    """Return the most telling pairs of a sweep at equal loss.

    Pairs are ranked by the errors of the numbers, and of the first `shown` the differences are taken by
    paired draws where the ledger has them.  Of more than `COMPARED` checkpoints, a sample is compared.
    Raises `ConfigError` for a task that was not measured.
    """
    loss, flatness, accuracies = _metrics(measured, task)
    if loss is None:
        return Matches([], 0)
    metrics = [loss, *flatness, *accuracies]
    table = measured.has(loss.name, *(m.name for m in [*flatness, *accuracies[:1]]))
    among = len(table)
    if among > COMPARED:
        table = table.iloc[of_whole_groups(COMPARED, configurations(table), numbers(table["run_id"]))]
    keys: list[Key] = list(zip(table["run_id"], table["step"].astype(int), strict=True))
    errors = table[error_key(loss.name)].fillna(0).to_numpy(dtype=float)
    of_loss, paired = loss_errors(keys, errors, LossDraws(sweep, loss))
    pairs = np.argwhere(np.triu(equal(table[loss.name].to_numpy(dtype=float), of_loss, tolerance)))
    if flatness and len(pairs):
        flat = table[flatness[0].name].to_numpy(dtype=float)[pairs]
        pairs = np.where((flat[:, 0] < flat[:, 1])[:, None], pairs[:, ::-1], pairs)
    found = []
    for i, j in pairs[_most_telling(table, pairs, flatness, accuracies, shown)]:
        first, second = table.iloc[[i, j]].to_dict(orient="records")
        apart = {m.name: _independent(first, second, m) for m in metrics}
        apart[loss.name] = Apart.student(apart[loss.name].value, float(of_loss[i, j]), paired=paired)
        same, differs = _compared(sweep.axes, first, second)
        match = Match(first=keys[i], second=keys[j], same=same, differs=differs)
        found.append(_with(match, apart, flatness, accuracies))
    found.sort(key=_order)
    draws = Draws(sweep)
    surer = []
    for match in found[:shown]:
        better = {m.name: draws.apart(m, match.first, match.second) for m in [*flatness, *accuracies]}
        apart = dict(match.differences) | {name: one for name, one in better.items() if one is not None}
        surer.append(_with(match, apart, flatness, accuracies))
    return Matches(sorted(surer, key=_order), len(pairs), len(table), among)


def _most_telling(
    table: pd.DataFrame,
    pairs: Array,
    flatness: Sequence[Description],
    accuracies: Sequence[Description],
    count: int,
) -> Array:
    """Return the places of the most telling of `pairs` [n, 2] of rows: `count` and some that are near."""
    telling = np.full(len(pairs), np.inf)
    for side in (flatness, accuracies):
        surest = np.zeros(len(pairs))
        for metric in side:
            value, error = (
                table[name].to_numpy(dtype=float)[pairs] for name in (metric.name, error_key(metric.name))
            )
            with np.errstate(invalid="ignore", divide="ignore"):
                apart = np.abs(value[:, 1] - value[:, 0]) / np.hypot(error[:, 0], error[:, 1])
            surest = np.fmax(surest, np.where(np.isfinite(apart), apart, 0.0))
        telling = np.minimum(telling, surest)
    if len(pairs) <= count:
        return np.arange(len(pairs))
    # Rounding must not leave out one of the pairs that are compared once more.
    least = np.partition(telling, len(pairs) - count)[len(pairs) - count]
    near = np.flatnonzero(telling >= least * (1 - 1e-9))
    run, step = (np.unique(table[name].to_numpy(), return_inverse=True)[1] for name in ("run_id", "step"))
    place = run.astype(np.int64) * (step.max() + 1) + step
    first, second = place[pairs[near]].T
    order = np.lexsort((second, first, -telling[near]))
    return np.asarray(near[order[: 2 * count]])


def _metrics(
    measured: Measurements, task: str | None
) -> tuple[Description | None, list[Description], list[Description]]:
    """Return the loss, the measure of flatness (or none), and the accuracies of a pair."""
    accuracies = measured.shown("accuracy")
    chosen = [m for m in accuracies if task is None or str(m.of.get("task")) == task]
    if task is not None and not chosen:
        known = ", ".join(sorted({str(m.of["task"]) for m in accuracies if "task" in m.of})) or "none"
        raise ConfigError(f"--task {task}: no accuracy of it has been measured; measured: {known}")
    return loss_of(measured), measured.comparable()[:1], chosen


def _with(
    match: Match,
    apart: Mapping[str, Apart],
    flatness: Sequence[Description],
    accuracies: Sequence[Description],
) -> Match:
    """Return a pair with its differences."""
    sides = [max((_sure(apart[m.name]) for m in side), default=0.0) for side in (flatness, accuracies)]
    return replace(match, differences=apart, telling=min(sides))


def _sure(apart: Apart) -> float:
    """Return a difference in standard errors; 0 where these are not known."""
    if not apart.standard_error > 0:
        return 0.0
    return abs(apart.value) / apart.standard_error


def _order(match: Match) -> tuple[float, Key, Key]:
    return -match.telling, match.first, match.second


def _independent(first: Mapping[Any, Any], second: Mapping[Any, Any], metric: Description) -> Apart:
    """Return the difference of two numbers as independent ones."""
    errors = [row[error_key(metric.name)] for row in (first, second)]
    value = float(second[metric.name] - first[metric.name])
    return Apart.student(value, math.hypot(*errors), paired=False)


def _compared(
    axes: Sequence[str], first: Mapping[Any, Any], second: Mapping[Any, Any]
) -> tuple[dict[str, Any], dict[str, tuple[Any, Any]]]:
    """Return what two checkpoints share, and the values of what differs between them, by name."""
    names = {"model": "size", "step": "steps", "algorithm": "algorithm"}
    names |= {column: column for column in (SEEDS if set(SEEDS) & set(first) else ["seed"])}
    names |= {axis: axis for axis in axes if axis not in names and axis in first and axis[:5] != "model"}
    values = {shown: (_value(first[name]), _value(second[name])) for name, shown in names.items()}
    same = {shown: one for shown, (one, other) in values.items() if one == other}
    return same, {shown: pair for shown, pair in values.items() if shown not in same}


def _value(value: Any) -> Any:
    """Return a cell of a table as plain data, None for a missing one."""
    if value is None or value != value:
        return None
    return value.item() if isinstance(value, np.generic) else value
