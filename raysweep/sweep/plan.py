"""The plan of a sweep: every run, milestone and evaluation is done, resumable or new, with the reason.

A plan is made from the sweep and the ledger alone.  It starts nothing and writes nothing (except that a
damaged record is moved to quarantine, as by every reader).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, Literal

from raysweep.sweep.changes import Changes, Settings, Stray, stray_lines
from raysweep.sweep.config import Sweep
from raysweep.sweep.estimate import NOTHING, Cost, History, Span, launch_seconds
from raysweep.sweep.learnt import of_storage
from raysweep.sweep.ledger import heads
from raysweep.sweep.missing import Missing
from raysweep.sweep.parameters import Counts, describe, parameters
from raysweep.sweep.resources import Resources
from raysweep.sweep.run import RunSpec
from raysweep.sweep.starts import Starts
from raysweep.sweep.survey import RunRecords, stored_lengths, survey
from raysweep.sweep.timing import measure
from raysweep.sweep.units import count, duration, size

State = Literal["done", "evaluate", "resume", "new", "blocked", "failed"]

STATES: tuple[State, ...] = ("done", "evaluate", "resume", "new", "blocked", "failed")

#: States of the runs that a launch works on.
_TO_DO = ("evaluate", "resume", "new", "blocked")

_MEANING = {
    "done": "nothing to do",
    "evaluate": "nothing to train; evaluations missing",
    "resume": "training goes on from a checkpoint",
    "new": "trained from the start",
    "blocked": "trained as soon as the run that it starts from is",
    "failed": "left alone; --retry-failed runs them again",
}


@dataclass(frozen=True)
class Item:
    """The checkpoint of one milestone (`evaluation` None) or one evaluation of it, and its state.

    `done`: recorded.  `resume`: its training goes on from an older checkpoint.  `new`: to be computed.
    `failed`: left alone.  `reason` says why it is not done.
    """

    step: int
    evaluation: str | None
    state: Literal["done", "resume", "new", "failed"]
    reason: str = ""


@dataclass(frozen=True)
class RunPlan:
    """The work on one run; `lacks` is what the ledger does not hold of it."""

    spec: RunSpec
    state: State
    reason: str
    items: tuple[Item, ...]
    lacks: Missing
    cost: Cost = field(default_factory=Cost)

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.spec.run_id

    @property
    def resume_step(self) -> int:
        """Training starts from the checkpoint of this step (0: from the start)."""
        return self.lacks.resume_step

    @property
    def train_to(self) -> int:
        """Training must reach this step; 0 if there is nothing to train."""
        return self.lacks.train_to

    @property
    def train_steps(self) -> int:
        """Number of steps to train."""
        return self.lacks.train_steps

    @property
    def missing(self) -> tuple[tuple[int, str], ...]:
        """(step, kind) of the evaluations to compute, in the order of steps; () for a failed run."""
        return () if self.state == "failed" else self.lacks.evaluations

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "run_id": self.run_id,
            "state": self.state,
            "reason": self.reason,
            "axes": dict(self.spec.axes),
            "resume_step": self.resume_step,
            "train_to": self.train_to,
            "train_steps": self.train_steps,
            "seconds": self.cost.seconds,
            "train_seconds": self.cost.training,
            "bytes": self.cost.bytes,
            "items": [
                {"step": i.step, "evaluation": i.evaluation, "state": i.state, "reason": i.reason}
                for i in self.items
            ],
        }


@dataclass(frozen=True)
class Plan:
    """The plan of a sweep."""

    name: str
    runs: tuple[RunPlan, ...]
    #: Remarks on the sweep.
    remarks: tuple[str, ...]
    resources: Resources
    #: Grid points and included runs that share their training with another.
    trainings_saved: int
    #: Seconds of training and evaluation, one after another on idle processors; None if a step has no time.
    work_seconds: float | None
    #: Bytes of new checkpoints, None if no size is known.
    new_bytes: int | None
    #: Trainable parameters of each model that is trained, by label: with its own vocabulary ("own") and with
    #: BERT's ("faithful"), the vocabulary of published sizes.
    parameters: Mapping[str, Counts] = field(default_factory=dict)
    #: Samples that a search chooses later, by the results of these runs.
    to_choose: int = 0
    #: Stored runs that the file no longer has.
    strays: tuple[Stray, ...] = ()
    #: Number of runs at once, if known and not set by the sweep itself.
    concurrency: int | None = None
    #: True if `concurrency` is an assumption: that of this machine.
    assumed: bool = False
    #: Seconds from the begin of a former launch on this machine to its first work; None if none tells.
    start: float | None = None
    #: Programs that wanted a CPU of this machine in the last minute, where there were more of them than CPUs.
    load: float | None = None

    @property
    def counts(self) -> dict[str, int]:
        """Number of runs in each state, every state named."""
        counted = Counter(run.state for run in self.runs)
        return {state: counted[state] for state in STATES}

    @property
    def to_do(self) -> tuple[RunPlan, ...]:
        """Runs that need work, those that wait for another run among them."""
        return tuple(run for run in self.runs if run.state in _TO_DO)

    @property
    def finished(self) -> bool:
        """True if a launch would start nothing."""
        return not self.to_do and not self.to_choose

    @property
    def wall_span(self) -> Span | None:
        """The least and the most seconds of a launch, start and end included; None if they are not known."""
        set_ = self.resources.max_concurrent
        at_once = set_ if isinstance(set_, int) else self.concurrency
        if self.finished or at_once is None:
            return NOTHING if self.finished else None
        return launch_seconds((run.cost for run in self.to_do), slots=at_once, start=self.start)

    @property
    def wall_seconds(self) -> float | None:
        """The middle of `wall_span`."""
        span = self.wall_span
        return None if span is None else sum(span) / 2

    @property
    def hours(self) -> dict[str, float]:
        """GPU-hours of the work, or CPU-hours where a sweep has no GPUs; {} where the time is not known."""
        if self.work_seconds is None:
            return {}
        device = "GPU" if self.resources.per_worker.get("GPU", 0) > 0 else "CPU"
        training = sum(run.cost.training or 0.0 for run in self.to_do)
        each = self.resources.workers * self.resources.per_worker.get(device, 0.0)
        measuring = (self.work_seconds - training) * self.resources.evaluate.get(device, 0.0)
        return {device: (training * each + measuring) / 3600}

    @property
    def not_counted(self) -> tuple[str, ...]:
        """The evaluations whose cost nobody knows, so that no time holds them."""
        return tuple(dict.fromkeys(kind for run in self.to_do for kind in run.cost.not_counted))

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the sweep, and the machine that the time is for."""
        found = self.remarks
        if self.finished or self.wall_span is None:
            return found
        if self.assumed and self.concurrency is not None:
            runs = f"{count(self.concurrency, 'run')} at once"
            found += (f"the time is for this machine, with {os.cpu_count()} CPUs and {runs}",)
        if self.load is not None:
            found += (
                f"other work keeps this machine busy (load {self.load:.0f} on {os.cpu_count()} CPUs), and "
                "the time is for one without",
            )
        return found

    def at(self, concurrency: int | None) -> Plan:
        """Return the plan for a cluster that trains so many runs at once."""
        return replace(self, concurrency=concurrency, assumed=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return {
            "sweep": self.name,
            "counts": self.counts,
            "trainings_saved": self.trainings_saved,
            "samples_to_choose": self.to_choose,
            "train_steps": sum(run.train_steps for run in self.to_do),
            "evaluations": sum(len(run.missing) for run in self.to_do),
            "work_seconds": self.work_seconds,
            "wall_seconds": self.wall_seconds,
            "wall_seconds_range": None if self.wall_span is None else list(self.wall_span),
            "hours": self.hours,
            "not_counted": list(self.not_counted),
            "new_bytes": self.new_bytes,
            "parameters": {model: dict(counts) for model, counts in self.parameters.items()},
            "notes": list(self.notes),
            "runs": [run.to_dict() for run in self.runs],
            "no_longer_in_file": [stray.to_dict() for stray in self.strays],
        }

    def lines(self, *, limit: int | None = 40) -> list[str]:
        """Return the plan as lines of text, with at most `limit` runs (None: all)."""
        out = [f"sweep {self.name}: {count(len(self.runs), 'run')}"]
        out += [f"  {n:>6} {state:<9} {_MEANING[state]}" for state, n in self.counts.items() if n]
        if self.trainings_saved:
            out.append(f"  {count(self.trainings_saved, 'training')} saved by sharing steps between runs")
        if self.to_choose:
            out.append(f"  {self.to_choose:>6} later     samples that the search chooses by results")
        steps, evaluations = sum(r.train_steps for r in self.to_do), sum(len(r.missing) for r in self.to_do)
        if self.finished:
            out.append("  nothing to train or evaluate")
        else:
            out.append(f"  to do: {count(steps, 'step')}, {count(evaluations, 'evaluation')}")
            out.append(f"  estimate: {self._estimate()}")
        models = list(self.parameters.items())
        shown_models = models if limit is None else models[:limit]
        out += [f"  model {label}: {describe(counts)}" for label, counts in shown_models]
        if len(shown_models) < len(models):
            out.append(f"  ... and {count(len(models) - len(shown_models), 'more model')}")
        out += [f"  note: {note}" for note in self.notes]
        width = max((len(run.run_id) for run in self.runs), default=0)
        # Runs that need work or attention come first.
        ordered = sorted(self.runs, key=lambda run: run.state == "done")
        shown = ordered if limit is None else ordered[:limit]
        out += [f"  {run.run_id:<{width}}  {run.state:<9} {run.reason}".rstrip() for run in shown]
        if len(shown) < len(ordered):
            out.append(f"  ... and {count(len(ordered) - len(shown), 'more run')}")
        return out + [f"  {line}" for line in stray_lines(self.strays, limit=limit)]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the lines of the plan, in columns."""
        return f"<pre>{escape(str(self))}</pre>"

    def _estimate(self) -> str:
        if self.work_seconds is None:
            time = "time unknown until steps have been timed"
        elif (span := self.wall_span) is not None:
            ends = list(dict.fromkeys(map(duration, span)))
            time = " to ".join(ends)
        else:
            time = f"{duration(self.work_seconds)} of work"
        if self.work_seconds is not None and self.not_counted:
            time += f" without {', '.join(self.not_counted)}, whose cost is not known"
        for device, hours in self.hours.items():
            time += f", {hours:,.0f} {device}-hours" if hours >= 100 else f", {hours:.2g} {device}-hours"
        space = "storage unknown" if self.new_bytes is None else f"{size(self.new_bytes)} of checkpoints"
        return f"{time}, {space}"


def make_plan(
    sweep: Sweep,
    *,
    retry_failed: bool = False,
    verify: bool = True,
    timed: bool = False,
    step_seconds: Mapping[str, float] | None = None,
    concurrency: int | None = None,
) -> Plan:
    """Compare the runs with the ledger: what is done, what is missing and why, with time and storage.

    With `verify`, every record is read and must be whole; otherwise file names suffice.  Times come from
    the ledger.  With `timed`, a few training steps are timed here for every model without a record, and
    the plan is for this machine until `Plan.at` names the number of runs at once; `step_seconds` gives
    such times by run id instead.  `concurrency` is the number of runs at once, if it is known.

    Raises `IdentityError` if a run's folder belongs to another configuration.
    """
    ledger = sweep.ledger()
    records = survey(ledger, sweep.runs, verify=verify)
    waits = Starts(ledger, sweep.runs, records, retry=retry_failed)
    if timed:
        step_seconds = measure(sweep, (s for s in sweep.runs if _untimed(s, records, waits, retry_failed)))
    learnt = of_storage(sweep.directory)
    history = History(sweep, records, step_seconds or {}, learnt)
    keyed: dict[tuple[str, ...], dict[str, str]] = {}
    runs = []
    fixed = any(spec.trains and spec.algorithm.depends_on_steps for spec in sweep.runs)
    present = ledger.run_ids() if fixed else []
    changes, settings = Changes(ledger, sweep), Settings(ledger)
    kept = {run_id for run_id, held in records.items() if held.recorded or held.evaluations}
    for spec in sweep.runs:
        # Runs of a sweep share their evaluations, so their identities are computed once.
        key = tuple(spec.evaluations)
        if key not in keyed:
            keyed[key] = heads(spec.evaluations)
        held = records.get(spec.run_id, _NOTHING)
        run = _plan_run(spec, held, keyed[key], history, waits, settings, retry_failed)
        if run.state == "new" and spec.run_id not in kept and (change := changes.to(spec, kept)):
            run = replace(run, reason=change)
        if run.state == "new" and spec.algorithm.depends_on_steps:
            lengths = stored_lengths(ledger, spec, (r for r in present if r != spec.run_id))
            if lengths:
                run = replace(run, reason=f"{run.reason}; {_not_extended(lengths)}")
        runs.append(run)
    to_do = [run for run in runs if run.state in _TO_DO]
    space = _total(run.cost.bytes for run in to_do)
    assumed = timed and concurrency is None
    return Plan(
        name=sweep.name,
        runs=tuple(runs),
        remarks=(*sweep.notes, *_of_search(sweep, to_do)),
        resources=sweep.resources,
        trainings_saved=max(0, sweep.points - len(sweep.runs)),
        work_seconds=_total(run.cost.seconds for run in to_do),
        new_bytes=None if space is None else round(space),
        parameters=parameters(sweep),
        to_choose=sweep.to_choose,
        strays=changes.strays(),
        concurrency=_here(sweep.resources) if assumed else concurrency,
        assumed=assumed,
        start=learnt.start,
        load=_load() if timed else None,
    )


_NOTHING = RunRecords()


def _load() -> float | None:
    """Return how many programs wanted a CPU of this machine; None where each has one, or nobody knows."""
    try:
        load = os.getloadavg()[0]
    except OSError:
        return None
    # This process is one of them.
    return load if load > (os.cpu_count() or 1) + 1 else None


def _of_search(sweep: Sweep, to_do: Sequence[RunPlan]) -> Iterator[str]:
    """Yield what a search makes of the estimates."""
    if sweep.to_choose:
        known = len(sweep.samples)
        yield f"time and storage are for the samples that are known, {known} of {known + sweep.to_choose}"
    if to_do and sweep.search is not None and sweep.search.scheduler is not None:
        yield "asha stops samples early, so time and storage are the most that it may take"


def _here(resources: Resources) -> int | None:
    """Return how many runs this machine trains at once; None if the sweep says it, or trains on GPUs.

    The machine that has the GPUs is not known here.
    """
    if resources.max_concurrent != "auto" or resources.per_worker.get("GPU", 0) > 0:
        return None
    cpus = resources.per_worker.get("CPU", 0) * resources.workers
    return max(1, int((os.cpu_count() or 1) / cpus)) if cpus > 0 else None


def _untimed(spec: RunSpec, records: Mapping[str, RunRecords], waits: Starts, retry_failed: bool) -> bool:
    """Return whether a run is to train and no record says how long its steps take."""
    held = records.get(spec.run_id, _NOTHING)
    if held.step_seconds is not None or (held.failure is not None and not retry_failed):
        return False
    return waits.missing(spec).train_steps > 0


def _plan_run(
    spec: RunSpec,
    held: RunRecords,
    wanted: Mapping[str, str],
    history: History,
    waits: Starts,
    settings: Settings,
    retry: bool,
) -> RunPlan:
    lacks = waits.missing(spec, wanted)
    wait, why = waits.wait(spec), waits.failure(spec)
    if held.failure is not None and not retry:
        why = f"failed: {why}; --retry-failed runs it again"
    failed = why is not None and not lacks.finished
    absent = set(lacks.evaluations)
    before = {(step, kind): head for step, kind, head in sorted(held.evaluations)} if absent else {}
    items = []
    for step in spec.milestones:
        if spec.trains:
            items.append(_checkpoint_item(step, lacks, held, why if failed else None))
        for kind in wanted:
            if (step, kind) not in absent:
                items.append(Item(step, kind, "done"))
            elif failed:
                items.append(Item(step, kind, "failed", why or ""))
            else:
                former = before.get((step, kind))
                reason = settings.change(spec, step, kind, former) if former else "not measured yet"
                items.append(Item(step, kind, "new", reason))
    status: State
    if lacks.finished:
        status, reason = "done", "" if spec.stopped is None else str(spec.stopped)
    elif failed:
        status, reason = "failed", why or ""
    elif wait is not None:
        status, reason = "blocked", wait.reason
    elif not lacks.checkpoints:
        status, reason = "evaluate", _evaluate_reason(items)
    else:
        status, reason = "new", _reason_of(items, lacks.checkpoints[0])
        if lacks.resume_step:
            status, reason = "resume", f"from step {lacks.resume_step}: {_asked(spec, lacks, held)}"
    idle = status in ("done", "failed")
    cost = Cost(step=history.step(spec)) if idle else history.cost(spec, lacks)
    return RunPlan(spec, status, reason, tuple(items), lacks, cost)


def _asked(spec: RunSpec, lacks: Missing, held: RunRecords) -> str:
    """Return why training goes on: what the file asks for, or what is gone."""
    first, last = lacks.checkpoints[0], lacks.train_to
    if first in held.recorded:
        return f"the checkpoint of step {first} is missing"
    milestone = "" if last == spec.milestones[-1] else "a milestone at "
    return f"the file asks for {milestone}{last:,}"


def _checkpoint_item(step: int, lacks: Missing, held: RunRecords, failed: str | None) -> Item:
    if step not in lacks.checkpoints:
        return Item(step, None, "done")
    if failed is not None:
        return Item(step, None, "failed", failed)
    reason = "checkpoint missing" if step in held.recorded else "not trained yet"
    if lacks.resume_step:
        return Item(step, None, "resume", f"{reason}; from step {lacks.resume_step}")
    return Item(step, None, "new", reason)


def _reason_of(items: Iterable[Item], step: int) -> str:
    return next(i.reason for i in items if i.step == step and i.evaluation is None).partition("; from")[0]


def _not_extended(lengths: Iterable[int]) -> str:
    return (
        f"the stored run of {', '.join(map(str, lengths))} steps cannot be extended or cut, "
        "because the learning rate depends on the number of steps"
    )


def _evaluate_reason(items: Iterable[Item]) -> str:
    """Return which evaluations are missing and why, grouped by kind."""
    grouped: dict[tuple[str, str], list[int]] = {}
    for item in items:
        if item.evaluation is not None and item.state != "done":
            grouped.setdefault((item.evaluation, item.reason), []).append(item.step)
    return "; ".join(
        f"{kind}: {reason}, at {'step' if len(steps) == 1 else 'steps'} {', '.join(map(str, steps))}"
        for (kind, reason), steps in grouped.items()
    )


def _total(values: Iterable[float | None]) -> float | None:
    """Return the sum, or None if a part is unknown."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total
