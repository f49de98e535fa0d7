"""Differences between checkpoints that were measured on the same draws.

All checkpoints of a sweep have the same sentences for the loss, the same inputs and test vectors for the
trace, and the same training sets, projections and test sentences for each seed of the probe.  What a sentence
or a seed adds to both sides falls out of a difference, so its standard error is that of the draws' own
differences.  The ledger keeps the values of the draws; where it does not have them, the two numbers count as
independent, which makes a difference less sure than it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from raysweep.evaluation.excess_loss import EXCESS_LOSS
from raysweep.evaluation.held_out_loss import HELD_OUT_LOSS
from raysweep.evaluation.metric import Description, error_key
from raysweep.evaluation.probe_metrics import PROBE
from raysweep.evaluation.run import stored_shards
from raysweep.evaluation.trace import TRACE, TraceConfig, inputs_of
from raysweep.flatness.trace.contrast import difference
from raysweep.report.regression import Array
from raysweep.sweep import evaluation_identity

if TYPE_CHECKING:
    import pandas as pd

    from raysweep.evaluation.base import Arrays
    from raysweep.sweep import Sweep

#: A checkpoint: run and step.
Key = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Apart:
    """A difference with its standard error and the degrees of freedom of its 95 % interval.

    `paired` says whether the draws' own differences gave the error; nan where it is not known.
    """

    value: float
    standard_error: float
    dof: float = math.inf
    paired: bool = False

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval."""
        margin = float(stats.t.ppf(0.975, self.dof)) * self.standard_error
        return self.value - margin, self.value + margin


def apart_in_table(table: pd.DataFrame, metric: str, first: Key, second: Key) -> Apart:
    """Return the second number minus the first, as independent ones, from a table indexed by run and step."""
    rows = [table.loc[key] for key in (first, second)]
    errors = [row[error_key(metric)] for row in rows]
    return Apart(value=float(rows[1][metric] - rows[0][metric]), standard_error=math.hypot(*errors))


def loss_draws(sweep: Sweep, loss: Description) -> dict[Key, Array]:
    """Return, for each checkpoint, what each sentence [n] adds to the error of its loss.

    Their sum is zero and their sum of squares the squared standard error.  {} for a loss without such values.
    """
    parts: dict[str, tuple[str, Callable[[list[Arrays]], Array]]] = {
        EXCESS_LOSS.name: ("excess_loss", _of_mean),
        HELD_OUT_LOSS.name: ("held_out_loss", _of_ratio),
    }
    if loss.name not in parts:
        return {}
    kind, made = parts[loss.name]
    return {key: made(shards) for key, shards in _stored(sweep, kind).items()}


def _of_mean(shards: list[Arrays]) -> Array:
    values = np.concatenate([shard["excess_loss"] for shard in shards])
    return (values - values.mean()) / math.sqrt(len(values) * max(len(values) - 1, 1))


def _of_ratio(shards: list[Arrays]) -> Array:
    sums, counts = (np.concatenate([shard[name] for shard in shards]) for name in ("loss", "masked"))
    n = len(sums)
    return (sums - sums.sum() / counts.sum() * counts) * math.sqrt(n / max(n - 1, 1)) / counts.sum()


def _stored(sweep: Sweep, kind: str) -> dict[Key, list[Arrays]]:
    """Return the shards of an evaluation at each checkpoint where all of them are there."""
    ledger, found = sweep.ledger(), {}
    for spec in sweep.runs:
        evaluation, run = spec.evaluations.get(kind), ledger.open(spec.run_id)
        if evaluation is None or not spec.trains:
            continue
        for step in spec.milestones:
            if run.evaluation(step, evaluation) is None:
                continue
            load = partial(run.load_arrays, step, kind, evaluation_identity(evaluation))
            shards, missing = stored_shards(evaluation, load)
            if shards and not missing:
                found[spec.run_id, step] = shards
    return found


def loss_errors(keys: list[Key], errors: Array, draws: Mapping[Key, Array]) -> tuple[Array, bool]:
    """Return the standard errors [n, n] of differences of loss between checkpoints, and if all are paired.

    `errors` [n] are those of the losses.
    """
    independent = np.sqrt(errors[:, None] ** 2 + errors[None, :] ** 2)
    lengths = {len(draws[key]) for key in keys if key in draws}
    if len(lengths) != 1 or any(key not in draws for key in keys):
        return independent, False
    stacked = np.stack([draws[key] for key in keys])
    products = stacked @ stacked.T
    own = np.diag(products)
    return np.sqrt(np.maximum(own[:, None] + own[None, :] - 2 * products, 0.0)), True


class Draws:
    """The stored values of a sweep's draws, for differences of traces and of accuracies.

    Each evaluation is read once, when it is first asked for.
    """

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self._read: dict[str, dict[Key, list[Arrays]]] = {}

    def _shards(self, kind: str) -> dict[Key, list[Arrays]]:
        if kind not in self._read:
            self._read[kind] = _stored(self.sweep, kind)
        return self._read[kind]

    def apart(self, metric: Description, first: Key, second: Key) -> Apart | None:
        """Return the second number minus the first by paired draws; None where they are not stored."""
        if metric.name == TRACE.name:
            return self._traces(first, second)
        if metric.quantity.startswith(PROBE.name) and metric.unit == PROBE.unit:
            return self._probes(metric, first, second)
        return None

    def _traces(self, first: Key, second: Key) -> Apart | None:
        stored = self._shards(TraceConfig.model_fields["kind"].default)
        if first not in stored or second not in stored:
            return None
        found = difference(inputs_of(stored[first]), inputs_of(stored[second]))
        return Apart(value=found.difference, standard_error=found.standard_error, paired=True)

    def _probes(self, metric: Description, first: Key, second: Key) -> Apart | None:
        stored = self._shards("probe")
        task, labels = metric.of.get("task"), metric.of.get("labels")
        sides = []
        for key in (first, second):
            merged = {name: array for shard in stored.get(key, []) for name, array in shard.items()}
            if f"accuracy.{task}" not in merged or set(metric.of) - {"task", "labels"}:
                return None
            sizes = merged[f"sizes.{task}"].tolist()
            sides.append(merged[f"accuracy.{task}"][-1, 0 if labels is None else sizes.index(labels)])
        change = sides[1] - sides[0]
        n = len(change)
        if n < 2:
            return None
        error = float(change.std(ddof=1)) / math.sqrt(n)
        return Apart(value=float(change.mean()), standard_error=error, dof=n - 1, paired=True)
