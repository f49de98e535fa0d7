"""Time and storage of the work that is left, estimated from measurements.

Seconds of a training step: the run's own history; else the caller's timing of the run; else the history of a
run with the same language, model, kind of algorithm and batch.

Seconds of an evaluation: the mean over runs with the same model; else its operations, as the evaluation
states them, over those of training a second (6 · parameters · words of a step), times the share of these that
evaluations of the kind reached in this sweep, else in other sweeps of the storage, else `SHARE`.

Seconds are those of a processor that has nothing else to do.  Of what one process does on one processor, that
is its processor time, because other work on a machine takes the clock's time alone.  Where it is not
recorded, or several processors or a GPU do the work, the recorded seconds are divided by the crowding
(`raysweep.sweep.learnt`).  Bytes of a checkpoint are the mean over runs with the same model; without any
history three float32 numbers a parameter (weights and the two moments of Adam), most of a checkpoint.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from raysweep.evaluation.operations import Operations
from raysweep.sweep.config import Sweep
from raysweep.sweep.identity import canonical
from raysweep.sweep.learnt import Learnt, crowding, first_work
from raysweep.sweep.ledger import heads
from raysweep.sweep.missing import Missing
from raysweep.sweep.run import RunSpec
from raysweep.sweep.survey import RunRecords

#: Of weights and two moments of the optimizer, of averaged weights, and of a gradient.
_BYTES_PER_PARAMETER, _BYTES_PER_AVERAGE, _BYTES_PER_GRADIENT = 12, 4, 4
#: Runs whose paces stand for that of the machine.
_SOME = 64
#: Operations a second of an evaluation over those of training, where no history tells.  Those of the encoders
#: of sweeps/scaling.yaml reached 0.4 (excess loss), 0.8 (probe) and 1.1 (trace, with few inputs) on an Intel
#: Xeon (Emerald Rapids).
SHARE = 0.6
#: Operations a second of a process that measures what is not trained, where no training tells: those of the
#: encoders of sweeps/scaling.yaml reached 2.5e10 to 7.3e10 in training (same processor).
PACE = 4e10
#: Where other sweeps tell, the share is within this factor of `SHARE`: very small work takes other times.
#: What is measured at `PACE` takes this many times less or more.
_APART = 4.0


class Span(NamedTuple):
    """The least and the most seconds of something."""

    least: float
    most: float


NOTHING = Span(0.0, 0.0)

#: Seconds from the begin of a launch to its first work, and from its last result to its end, where no history
#: tells: on two cores (Intel Xeon, Emerald Rapids; AMD EPYC, Zen 3), the most of them with other work beside.
START, END = Span(15.0, 38.0), Span(8.0, 18.0)
#: Seconds by which a run takes longer than its steps and evaluations: from warm lanes to nested training, by
#: `raysweep bench engine`.
RUN = Span(0.6, 4.6)
#: Processors that start and end of a launch keep busy, its report included: 30 s of processor time in 21 s,
#: by `raysweep bench engine`.
_BUSY = 1.4
#: The start of other launches on the same machine varies by this.
_STARTS = Span(0.8, 1.4)
#: What the work takes in relation to the estimate: records, MLflow and Ray's own processes need the
#: processors too, and processes beside each other share caches.
_WORK = Span(0.9, 1.25)


@dataclass(frozen=True)
class Cost:
    """Estimated seconds of work, bytes of checkpoints and seconds of a step; None if nothing was measured.

    `training` is the part of the seconds that is training, `span` the least and the most of all of them, and
    `evaluations` the seconds of one evaluation by kind.  `not_counted` are the kinds whose cost nobody knows:
    they are no part of the seconds.
    """

    seconds: float | None = 0.0
    bytes: float | None = 0.0
    step: float | None = None
    training: float | None = 0.0
    span: Span = NOTHING
    evaluations: Mapping[str, float] = field(default_factory=dict)
    not_counted: tuple[str, ...] = ()


class History:
    """Measured costs of the runs of a sweep; `learnt` is what other launches of the storage tell."""

    def __init__(
        self,
        sweep: Sweep,
        records: Mapping[str, RunRecords],
        step_seconds: Mapping[str, float],
        learnt: Learnt | None = None,
    ) -> None:
        self.sweep = sweep
        self.learnt = learnt or Learnt()
        self.timed = dict(step_seconds)
        self._texts: dict[int, str] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._known: dict[tuple[str, str, str], Operations | None] = {}
        #: `heads` of the evaluations of runs, which share them; the runs keep these alive.
        self._wanted: dict[tuple[int, ...], dict[str, str]] = {}
        self._records = records
        #: Seconds of a step of the runs that the ledger has trained, by run id.
        self.own = {
            spec.run_id: self._idle(held.step_seconds, held.step_cpu_seconds, self._trains_alone)
            for spec in sweep.runs
            if (held := records.get(spec.run_id)) is not None and held.step_seconds is not None
        }

    @cached_property
    def _trains_alone(self) -> bool:
        resources = self.sweep.resources
        return resources.workers == 1 and _single(resources.per_worker)

    @cached_property
    def _crowd(self) -> float:
        return crowding(self.sweep.directory, self._records.values(), self.sweep.resources)

    def _idle(self, seconds: float, used: float | None, alone: bool) -> float:
        return min(seconds, used) if alone and used else seconds / self._crowd

    # What follows is made where somebody asks for it: nobody does of thousands of runs that lack nothing.

    @cached_property
    def alike(self) -> Mapping[tuple[str, str, str, int], float]:
        """Seconds of a step by what it depends on, a mean over runs."""
        found: dict[tuple[str, str, str, int], list[float]] = {}
        for spec in self.sweep.runs:
            if spec.run_id in self.own:
                found.setdefault(self._like(spec), []).append(self.own[spec.run_id])
        return {key: statistics.fmean(values) for key, values in found.items()}

    @cached_property
    def sizes(self) -> Mapping[tuple[str, str, bool], float]:
        """Bytes of a checkpoint by what they depend on, a mean over runs."""
        found: dict[tuple[str, str, bool], list[float]] = {}
        for spec in self.sweep.runs:
            held = self._records.get(spec.run_id)
            if held is not None and held.checkpoint_bytes is not None:
                found.setdefault(self._stored(spec), []).append(held.checkpoint_bytes)
        return {key: statistics.fmean(values) for key, values in found.items()}

    @cached_property
    def evaluations(self) -> Mapping[tuple[str, str], float]:
        """Seconds of an evaluation by model and name, a mean over runs."""
        alone = _single(self.sweep.resources.evaluate)
        found: dict[tuple[str, str], list[float]] = {}
        for spec in self.sweep.runs:
            held = self._records.get(spec.run_id)
            if held is None:
                continue
            model, wanted = self._model(spec), self._heads(spec)
            for kind, head, seconds, used in held.evaluation_seconds:
                if wanted.get(kind) != head:
                    continue  # with other settings it takes another time
                found.setdefault((model, kind), []).append(self._idle(seconds, used, alone))
        return {key: statistics.fmean(values) for key, values in found.items()}

    @cached_property
    def shares(self) -> Mapping[str, float]:
        """Share of the pace of training that evaluations of each kind reach, here or in other sweeps."""
        return {**_bounded(self.learnt.shares), **self._shares()}

    def _model(self, spec: RunSpec) -> str:
        if not spec.trains:
            return "none"
        if id(spec.model) not in self._texts:
            self._texts[id(spec.model)] = canonical(spec.model.encode())
        return self._texts[id(spec.model)]

    def _heads(self, spec: RunSpec) -> dict[str, str]:
        key = tuple(map(id, spec.evaluations.values()))
        if key not in self._wanted:
            self._wanted[key] = heads(spec.evaluations)
        return self._wanted[key]

    def _stored(self, spec: RunSpec) -> tuple[str, str, bool]:
        """Return what the size of a checkpoint depends on."""
        return self._model(spec), spec.algorithm.kind, spec.algorithm.average_decay is not None

    def _like(self, spec: RunSpec) -> tuple[str, str, str, int]:
        batch = spec.pretrain.batch_size
        return (spec.language_fingerprint, self._model(spec), spec.algorithm.kind, batch)

    def step(self, spec: RunSpec) -> float | None:
        """Return the seconds of a training step of a run; None if they are not known."""
        for known in (self.own, self.timed):
            if spec.run_id in known:
                return known[spec.run_id]
        return self.alike.get(self._like(spec))

    def _parameters(self, spec: RunSpec) -> int:
        if not spec.trains:
            return 0
        key = (self._model(spec), spec.language_fingerprint)
        if key not in self._counts:
            self._counts[key] = spec.model.parameters(self.sweep.language(spec))
        return self._counts[key]

    def training_bytes(self, spec: RunSpec) -> float:
        """Return the bytes of a training process: of its checkpoint and its gradients, no activations."""
        return self.checkpoint_bytes(spec) + _BYTES_PER_GRADIENT * self._parameters(spec)

    def checkpoint_bytes(self, spec: RunSpec) -> float:
        """Return the bytes of a checkpoint."""
        key = self._stored(spec)
        if key in self.sizes:
            return self.sizes[key]
        *_, averaged = key
        return (_BYTES_PER_PARAMETER + averaged * _BYTES_PER_AVERAGE) * self._parameters(spec)

    def _pace(self, spec: RunSpec) -> float | None:
        """Return the operations a second of a process that trains a run; None if they are not known.

        What trains on a GPU and is measured on a CPU, or the other way round, has no pace in common.
        """
        resources, step = self.sweep.resources, self.step(spec)
        both = {bool(of.get("GPU", 0)) for of in (resources.per_worker, resources.evaluate)}
        if not spec.trains or not step or len(both) > 1:
            return None
        words = spec.pretrain.batch_size * self.sweep.language(spec).max_length
        processes = 1 if spec.run_id in self.timed else resources.workers
        return 6.0 * self._parameters(spec) * words / step / processes

    def _operations(self, spec: RunSpec, kind: str) -> Operations | None:
        key = (self._model(spec), spec.language_fingerprint, kind)
        if key not in self._known:
            evaluation = spec.evaluations[kind]
            self._known[key] = evaluation.operations(self._parameters(spec), self.sweep.language(spec))
        return self._known[key]

    def _shares(self) -> dict[str, float]:
        """Return the share of the pace of training that evaluations of each kind of this sweep reached."""
        taken: dict[str, list[tuple[float, float]]] = {}
        seen = set()
        for spec in self.sweep.runs:
            pace, model = self._pace(spec), self._model(spec)
            for key, evaluation in spec.evaluations.items():
                seconds = self.evaluations.get((model, key))
                if not seconds or pace is None or (model, key) in seen:
                    continue
                seen.add((model, key))
                operations = self._operations(spec, key)
                if operations is not None:
                    taken.setdefault(evaluation.kind, []).append((operations.middle / pace, seconds))
        return {
            kind: sum(expected for expected, _ in pairs) / sum(seconds for _, seconds in pairs)
            for kind, pairs in taken.items()
        }

    def evaluation(self, spec: RunSpec, kind: str) -> tuple[float, Span] | None:
        """Return the seconds of an evaluation with their least and most; None if nothing tells."""
        known = self.evaluations.get((self._model(spec), kind))
        if known is not None:
            return known, Span(known, known)
        operations, pace = self._operations(spec, kind), self._pace(spec)
        if pace is None:
            # What is not trained is measured by processes like those of the others.
            pace = None if spec.trains else self._median_pace()
        if operations is None:
            return None
        if pace is None and not spec.trains and not self.sweep.resources.evaluate.get("GPU", 0):
            rate = PACE * SHARE
            return operations.middle / rate, Span(
                operations.least / rate / _APART, operations.most / rate * _APART
            )
        if pace is None:
            return None
        share = self.shares.get(spec.evaluations[kind].kind)
        if share is not None:
            seconds = operations.middle / (pace * share)
            return seconds, Span(seconds, seconds)
        rate = pace * SHARE
        return operations.middle / rate, Span(operations.least / rate, operations.most / rate)

    def _median_pace(self) -> float | None:
        """Return the median pace of some runs that train; None if none is known."""
        paces = [pace for pace in map(self._pace, self.sweep.runs[:_SOME]) if pace is not None]
        return statistics.median(paces) if paces else None

    def cost(self, spec: RunSpec, lacks: Missing) -> Cost:
        """Return the cost of what a run lacks."""
        known = self.step(spec)
        step = known if lacks.train_steps else 0.0
        new = len(lacks.checkpoints)
        kinds = dict.fromkeys(kind for _, kind in lacks.evaluations)
        found = {kind: self.evaluation(spec, kind) for kind in kinds}
        each = [found[kind] for _, kind in lacks.evaluations]
        spans = [one[1] for one in each if one is not None]
        training = None if step is None else lacks.train_steps * step
        measuring = sum(one[0] for one in each if one is not None)
        return Cost(
            seconds=None if training is None else training + measuring,
            bytes=new * self.checkpoint_bytes(spec) if new else 0.0,
            step=known,
            training=training,
            span=Span(
                (training or 0.0) + sum(span.least for span in spans),
                (training or 0.0) + sum(span.most for span in spans),
            ),
            evaluations={kind: one[0] for kind, one in found.items() if one is not None},
            not_counted=tuple(kind for kind, one in found.items() if one is None),
        )

    def tells(self) -> Learnt:
        """Return what this history tells the next launches."""
        start = first_work(self.sweep.directory, self._records.values())
        return Learnt(start=start, shares=self._shares())


def _single(asked: Mapping[str, float]) -> bool:
    """Return whether what a process asks for is at most one processor, and nothing else."""
    return set(asked) <= {"CPU"} and asked.get("CPU", 0.0) <= 1


def _bounded(shares: Mapping[str, float]) -> dict[str, float]:
    """Return shares of other sweeps within a factor of `SHARE`, because other sizes may be far from these."""
    return {kind: min(max(share, SHARE / _APART), SHARE * _APART) for kind, share in shares.items()}


def launch_seconds(costs: Iterable[Cost], *, slots: int, start: float | None = None) -> Span | None:
    """Return the least and the most seconds of a launch of some runs, `slots` of them at once.

    The least is that of work that all processors share to the end, but for the training of a single run; the
    most that of runs that do their work one thing after another.  `start` are the seconds from the begin of a
    former launch on this machine to its first work.  None if the seconds of a run are not known.
    """
    known = list(costs)
    trained = [cost.training for cost in known if cost.training is not None]
    if any(cost.seconds is None for cost in known):
        return None
    runs = [
        Span(cost.span.least + RUN.least, cost.span.most + RUN.most) if cost.training else cost.span
        for cost in known
    ]
    slots = max(1, min(slots, len(runs)))
    least = max(sum(run.least for run in runs) / slots, *trained, 0.0)
    most = one_after_another((run.most for run in runs), slots)
    begin = _begin(start)
    return Span(
        begin.least + _WORK.least * least + END.least,
        begin.most + _WORK.most * most + END.most,
    )


def processor_seconds(costs: Iterable[Cost], *, start: float | None = None) -> float:
    """Return the seconds of processor time of a launch besides its work: of start, end and each run."""
    trained = sum(bool(cost.training) for cost in costs)
    return (_BUSY * (sum(_begin(start)) + sum(END)) + trained * sum(RUN)) / 2


def _begin(start: float | None) -> Span:
    return START if start is None else Span(*(start * factor for factor in _STARTS))


def one_after_another(work: Iterable[float], slots: int) -> float:
    """Return when the last of some works ends, each begun in order as soon as one of the slots is free.

    >>> one_after_another([3.0, 1.0, 1.0, 4.0], slots=2)
    6.0
    """
    free = [0.0] * slots
    for seconds in work:
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)
