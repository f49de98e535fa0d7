"""Differences between checkpoints that were measured on the same draws.

All checkpoints of a sweep have the same sentences for the loss, the same inputs and test vectors for the
trace, and the same training sets, projections and test sentences for each seed of the probe.  What a sentence
or a seed adds to both sides falls out of a difference, so its standard error is that of the draws' own
differences.  The ledger keeps the values of the draws; where it does not have them, the two numbers count as
independent, which makes a difference less sure than it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Self

import numpy as np

from raysweep.evaluation.excess_loss import EXCESS_LOSS
from raysweep.evaluation.held_out_loss import HELD_OUT_LOSS
from raysweep.evaluation.metric import Description
from raysweep.evaluation.probe_metrics import PROBE, of_labels
from raysweep.evaluation.run import stored_shards
from raysweep.evaluation.sharding import shard_count
from raysweep.evaluation.trace import ENLARGED, TRACE, TraceConfig
from raysweep.evaluation.trace_arrays import inputs_of
from raysweep.flatness.trace.contrast import difference
from raysweep.report.quantiles import t_quantile
from raysweep.report.regression import Array
from raysweep.sweep import arrays_identity

if TYPE_CHECKING:
    from raysweep.evaluation.base import Arrays, Evaluation
    from raysweep.sweep import RunLedger, Sweep

#: Evaluations of checkpoints that are kept in memory.
KEPT = 16

#: A checkpoint: run and step.
Key = tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Apart:
    """A difference with its standard error, nan where it is not known, and its 95 % interval.

    `paired` says whether the draws' own differences gave the error.
    """

    value: float
    standard_error: float
    interval: tuple[float, float]
    paired: bool

    @classmethod
    def student(cls, value: float, standard_error: float, *, dof: float = math.inf, paired: bool) -> Self:
        """Return a difference with the interval of Student's t, the normal one for infinite `dof`."""
        margin = float(t_quantile(0.975, dof)) * standard_error
        ends = value - margin, value + margin
        return cls(value=value, standard_error=standard_error, interval=ends, paired=paired)

    @classmethod
    def of_draws(cls, changes: Array) -> Self:
        """Return the mean difference of paired draws [n], two at least, with their own error.

        Draws that are all alike, as accuracies on few sentences may be, do not tell how they vary.
        """
        n = len(changes)
        error = float(changes.std(ddof=1)) / math.sqrt(n) if np.ptp(changes) > 0 else math.nan
        return cls.student(float(changes.mean()), error, dof=n - 1, paired=True)


class LossDraws(Mapping[Key, Array]):
    """For each checkpoint, what each sentence [n] adds to the error of its loss; read where somebody asks.

    Their sum is zero and their sum of squares the squared standard error.  Empty for a loss without such
    values.
    """

    def __init__(self, sweep: Sweep, loss: Description) -> None:
        parts: dict[str, tuple[str, Callable[[list[Arrays]], Array]]] = {
            EXCESS_LOSS.name: ("excess_loss", _of_mean),
            HELD_OUT_LOSS.name: ("held_out_loss", _of_ratio),
        }
        self._sweep = sweep
        kind, self._made = parts.get(loss.name, ("", _of_mean))
        self._kind = kind
        trained = (spec for spec in sweep.runs if spec.trains and kind in spec.evaluations)
        self._steps = {spec.run_id: spec.milestones for spec in trained}
        self._known: dict[Key, Array | None] = {}

    def __getitem__(self, key: Key) -> Array:
        if key[1] not in self._steps.get(key[0], ()):
            raise KeyError(key)
        if key not in self._known:
            shards = _stored(self._sweep, self._kind, key)
            self._known[key] = self._made(shards) if shards else None
        found = self._known[key]
        if found is None:
            raise KeyError(key)
        return found

    def __iter__(self) -> Iterator[Key]:
        keys = ((run_id, step) for run_id, steps in self._steps.items() for step in steps)
        return (key for key in keys if key in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _of_mean(shards: list[Arrays]) -> Array:
    values = np.concatenate([shard["excess_loss"] for shard in shards])
    return (values - values.mean()) / math.sqrt(len(values) * max(len(values) - 1, 1))


def _of_ratio(shards: list[Arrays]) -> Array:
    sums, counts = (np.concatenate([shard[name] for shard in shards]) for name in ("loss", "masked"))
    n = len(sums)
    return (sums - sums.sum() / counts.sum() * counts) * math.sqrt(n / max(n - 1, 1)) / counts.sum()


def _stored(sweep: Sweep, kind: str, key: Key) -> list[Arrays]:
    """Return the shards of an evaluation at a checkpoint; [] where they are not all there."""
    evaluation = sweep.run(key[0]).evaluations.get(kind)
    return [] if evaluation is None else shards_of(sweep.ledger().open(key[0]), key[1], kind, evaluation)


def shards_of(run: RunLedger, step: int, kind: str, evaluation: Evaluation) -> list[Arrays]:
    """Return the shards of a recorded evaluation; [] where there is no record, or not all are there."""
    record = run.evaluation(step, evaluation)
    if record is None:
        return []
    load = partial(run.load_arrays, step, kind, arrays_identity(evaluation))
    if isinstance(evaluation, TraceConfig):
        # The record tells how many inputs counted, so the rule that decided it need not be asked again.
        [inputs] = [metric.n for metric in record.metrics if metric.name == TRACE.name]
        found = [load(shard) for shard in range(shard_count(inputs, evaluation.shard_size))]
        there = [arrays for arrays in found if arrays is not None]
        return there if len(there) == len(found) else []
    shards, missing = stored_shards(evaluation, load)
    return [] if missing else shards


def loss_errors(keys: list[Key], errors: Array, draws: Mapping[Key, Array]) -> tuple[Array, bool]:
    """Return the standard errors [n, n] of differences of loss between checkpoints, and if all are paired.

    `errors` [n] are those of the losses.
    """
    independent = np.sqrt(errors[:, None] ** 2 + errors[None, :] ** 2)
    # The first that is missing decides, so the others are not read.
    if any(key not in draws for key in keys) or len({len(draws[key]) for key in keys}) != 1:
        return independent, False
    stacked = np.stack([draws[key] for key in keys])
    products = stacked @ stacked.T
    own = np.diag(products)
    return np.sqrt(np.maximum(own[:, None] + own[None, :] - 2 * products, 0.0)), True


class Draws:
    """The stored values of a sweep's draws, for differences of traces and of accuracies.

    What was read last is kept, because neighbouring pairs share checkpoints.
    """

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._read = lru_cache(maxsize=KEPT)(partial(_stored, sweep))

    def apart(self, metric: Description, first: Key, second: Key) -> Apart | None:
        """Return the second number minus the first by paired draws; None where they are not stored."""
        if metric.name in (TRACE.name, ENLARGED.name):
            return self._traces(metric, first, second)
        return self._probes(metric, first, second)

    def _traces(self, metric: Description, first: Key, second: Key) -> Apart | None:
        """Return the difference of traces, each in its own parameters or all in one space."""
        sides = []
        for key in (first, second):
            shards, evaluation = self._read("trace", key), self._sweep.run(key[0]).evaluations.get("trace")
            if not shards or not isinstance(evaluation, TraceConfig):
                return None
            shape = evaluation.enlarged_to if metric.name == ENLARGED.name else None
            sides.append(inputs_of(shards, shape))
        found = difference(*sides)
        return Apart(
            value=found.difference, standard_error=found.standard_error, interval=found.interval, paired=True
        )

    def _probes(self, metric: Description, first: Key, second: Key) -> Apart | None:
        sides = [self.seeds(metric, key) for key in (first, second)]
        if sides[0] is None or sides[1] is None or len(sides[0]) < 2:
            return None
        return Apart.of_draws(sides[1] - sides[0])

    def seeds(self, metric: Description, key: Key) -> Array | None:
        """Return the accuracy of a probe for each of its seeds [n]; None where it is not stored."""
        if metric.quantity not in (PROBE.name, of_labels(PROBE).name) or metric.unit != PROBE.unit:
            return None
        task, labels = metric.of.get("task"), metric.of.get("labels")
        shards = self._read("probe", key)
        if not shards or f"accuracy.{task}" not in shards[0] or set(metric.of) - {"task", "labels"}:
            return None
        sizes = shards[0][f"sizes.{task}"].tolist()
        found: Array = shards[0][f"accuracy.{task}"][-1, 0 if labels is None else sizes.index(labels)]
        return found

    def beside_the_table(self, metrics: Sequence[Description], keys: Sequence[Key]) -> Array | None:
        """Return the mean accuracies of checkpoints less those of the look-up table, by seed [keys, n].

        None where the seeds of one are not stored, and where the sweep has several languages, or no table.
        """
        untrained = [(spec.run_id, spec.milestones[-1]) for spec in self._sweep.runs if not spec.trains]
        if len(untrained) != 1 or len({spec.language_fingerprint for spec in self._sweep.runs}) > 1:
            return None
        sides = [[self.seeds(metric, key) for metric in metrics] for key in (*untrained, *keys)]
        known = [[one for one in side if one is not None] for side in sides]
        if any(len(side) < len(metrics) for side in known) or len({len(o) for s in known for o in s}) != 1:
            return None
        means = np.array(known).mean(axis=1)
        return means[1:] - means[0] if means.shape[1] > 1 else None
