"""The plan of a sweep: every run, milestone and evaluation is done, resumable or new, with the reason."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, Literal

from raysweep.sweep.changes import Stray, stray_lines
from raysweep.sweep.estimate import NOTHING, Cost, Span, launch_seconds, processor_seconds
from raysweep.sweep.missing import Missing
from raysweep.sweep.parameters import Counts, describe
from raysweep.sweep.resources import Resources
from raysweep.sweep.run import RunSpec
from raysweep.sweep.units import count, duration, size

State = Literal["done", "evaluate", "resume", "new", "blocked", "failed"]

STATES: tuple[State, ...] = ("done", "evaluate", "resume", "new", "blocked", "failed")

#: States of the runs that a launch works on.
TO_DO = ("evaluate", "resume", "new", "blocked")

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

    def to_dict(self, shared: dict[int, list[dict[str, Any]]] | None = None) -> dict[str, Any]:
        """Return plain data; `shared` has the items of runs, which runs with the same ones share."""
        known = {} if shared is None else shared
        if id(self.items) not in known:
            known[id(self.items)] = [dict(vars(item)) for item in self.items]
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
            "items": known[id(self.items)],
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
    #: Remarks that hold on this machine alone.
    here: tuple[str, ...] = ()
    #: Samples that a search chooses later, by the results of these runs.
    to_choose: int = 0
    #: Stored runs that the file no longer has.
    strays: tuple[Stray, ...] = ()
    #: Number of stored runs that other sweep files of this name have, by file.
    elsewhere: Mapping[str, int] = field(default_factory=dict)
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
        return tuple(run for run in self.runs if run.state in TO_DO)

    @property
    def order(self) -> tuple[RunPlan, ...]:
        """The runs of `to_do` in the order in which a launch begins them: those with the most work first.

        So no long run is left alone at the end.  The work of a run includes that of the longest chain of runs
        that wait for it.  If the time of a run is not known, it is the order of the file.
        """
        work = dict[str, float]()
        # What waits for a run comes after it.
        for run in reversed(self.to_do):
            if run.cost.seconds is None:
                return self.to_do
            work[run.run_id] = work.get(run.run_id, 0.0) + run.cost.seconds
            if run.state == "blocked" and run.spec.source is not None and run.spec.source.own is not None:
                source = run.spec.source.own
                work[source] = max(work.get(source, 0.0), work[run.run_id])
        return tuple(sorted(self.to_do, key=lambda run: -work[run.run_id]))

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
        return launch_seconds((run.cost for run in self.order), slots=at_once, start=self.start)

    @property
    def wall_seconds(self) -> float | None:
        """The middle of `wall_span`."""
        span = self.wall_span
        return None if span is None else sum(span) / 2

    @property
    def hours(self) -> dict[str, float]:
        """GPU-hours of the work, or CPU-hours of the launch where a sweep has no GPUs.

        {} where the time is not known.
        """
        if self.work_seconds is None:
            return {}
        device = "GPU" if self.resources.per_worker.get("GPU", 0) > 0 else "CPU"
        training = sum(run.cost.training or 0.0 for run in self.to_do)
        each = self.resources.workers * self.resources.per_worker.get(device, 0.0)
        measuring = (self.work_seconds - training) * self.resources.evaluate.get(device, 0.0)
        besides = 0.0
        if device == "CPU" and not self.finished:
            besides = processor_seconds((run.cost for run in self.to_do), start=self.start)
        return {device: (training * each + measuring + besides) / 3600}

    @property
    def not_counted(self) -> tuple[str, ...]:
        """The evaluations whose cost nobody knows, so that no time holds them."""
        return tuple(dict.fromkeys(kind for run in self.to_do for kind in run.cost.not_counted))

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the sweep, and the machine that the time is for."""
        found = self.remarks + self.here
        if self.finished or self.wall_span is None:
            return found
        if self.assumed and self.concurrency is not None:
            at_once = min(self.concurrency, len(self.to_do))
            runs = f" and {count(at_once, 'run')} at once" if len(self.to_do) > 1 else ""
            found += (f"the time is for this machine, with {os.cpu_count()} CPUs{runs}",)
        if self.load is not None:
            found += (
                f"other work keeps this machine busy (load {self.load:.0f} on {os.cpu_count()} CPUs), and "
                "the time is for one without",
            )
        return found

    def at(self, concurrency: int | None) -> Plan:
        """Return the plan for a cluster that trains so many runs at once."""
        return replace(self, concurrency=concurrency, assumed=False, here=())

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        shared: dict[int, list[dict[str, Any]]] = {}
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
            "runs": [run.to_dict(shared) for run in self.runs],
            "no_longer_in_file": [stray.to_dict() for stray in self.strays],
            "in_other_files": dict(self.elsewhere),
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
        return out + [f"  {line}" for line in stray_lines(self.strays, self.elsewhere, limit=limit)]

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        return "\n".join(self.lines(limit=12))

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
