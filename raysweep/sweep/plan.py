"""What a launch would do: every run, milestone and evaluation is done, resumable or new, and why.

The plan is made from the sweep and the ledger alone; it starts nothing and writes nothing (a damaged record
that it meets is moved to quarantine, as by every reader).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from raysweep.sweep.config import Sweep
from raysweep.sweep.estimate import Cost, History
from raysweep.sweep.ledger import Ledger, heads
from raysweep.sweep.parameters import Counts, describe, parameters
from raysweep.sweep.run import RunSpec
from raysweep.sweep.survey import RunRecords, stored_lengths, survey

State = Literal["done", "evaluate", "resume", "new", "failed"]

STATES: tuple[State, ...] = ("done", "evaluate", "resume", "new", "failed")

_MEANING = {
    "done": "nothing to do",
    "evaluate": "nothing to train; evaluations missing",
    "resume": "training goes on from a checkpoint",
    "new": "trained from the start",
    "failed": "left alone; --retry-failed runs them again",
}


@dataclass(frozen=True)
class Item:
    """One milestone's checkpoint (`evaluation` None) or one evaluation of it, and its state.

    `done`: recorded.  `resume`: its training goes on from an older checkpoint.  `new`: to be computed.
    `failed`: left alone.  `reason` says why it is not done.
    """

    step: int
    evaluation: str | None
    state: Literal["done", "resume", "new", "failed"]
    reason: str = ""


@dataclass(frozen=True)
class RunPlan:
    """What is to be done for one run."""

    spec: RunSpec
    state: State
    reason: str
    items: tuple[Item, ...]
    #: Training starts from the checkpoint of this step (0: from the start) ...
    resume_step: int = 0
    #: ... and must reach this one; 0 where there is nothing to train.
    train_to: int = 0
    cost: Cost = field(default_factory=Cost)

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.spec.run_id

    @property
    def train_steps(self) -> int:
        """Steps to train."""
        return max(0, self.train_to - self.resume_step)

    @property
    def missing(self) -> tuple[tuple[int, str], ...]:
        """(step, kind) of the evaluations to be computed, in the order of steps; () for a failed run."""
        if self.state == "failed":
            return ()
        return tuple((i.step, i.evaluation) for i in self.items if i.evaluation and i.state != "done")

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
    notes: tuple[str, ...]
    #: Grid points and included runs that share their training with another.
    trainings_saved: int
    #: Seconds of training and evaluation, one run after another; None where nothing was measured yet.
    work_seconds: float | None
    #: The same divided by the runs at once, where that is known.
    wall_seconds: float | None
    #: Bytes of new checkpoints, None where no size is known.
    new_bytes: int | None
    #: Trainable parameters of each model that is trained, by label: with its own vocabulary ("own") and with
    #: BERT's ("faithful"), in which published sizes count.
    parameters: Mapping[str, Counts] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """Runs by state, every state named."""
        counted = Counter(run.state for run in self.runs)
        return {state: counted[state] for state in STATES}

    @property
    def to_do(self) -> tuple[RunPlan, ...]:
        """Runs that need work now."""
        return tuple(run for run in self.runs if run.state in ("evaluate", "resume", "new"))

    @property
    def finished(self) -> bool:
        """True where a launch would start nothing."""
        return not self.to_do

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, for JSON."""
        return {
            "sweep": self.name,
            "counts": self.counts,
            "trainings_saved": self.trainings_saved,
            "train_steps": sum(run.train_steps for run in self.to_do),
            "evaluations": sum(len(run.missing) for run in self.to_do),
            "work_seconds": self.work_seconds,
            "wall_seconds": self.wall_seconds,
            "new_bytes": self.new_bytes,
            "parameters": {model: dict(counts) for model, counts in self.parameters.items()},
            "notes": list(self.notes),
            "runs": [run.to_dict() for run in self.runs],
        }

    def lines(self, *, limit: int | None = 40) -> list[str]:
        """Return the plan as plain text, at most `limit` runs of it (None: all)."""
        out = [f"sweep {self.name}: {_count(len(self.runs), 'run')}"]
        out += [f"  {n:>6} {state:<9} {_MEANING[state]}" for state, n in self.counts.items() if n]
        if self.trainings_saved:
            out.append(f"  {_count(self.trainings_saved, 'training')} saved by sharing steps between runs")
        steps, evaluations = sum(r.train_steps for r in self.to_do), sum(len(r.missing) for r in self.to_do)
        if self.finished:
            out.append("  nothing to train or evaluate")
        else:
            out.append(f"  to do: {_count(steps, 'step')}, {_count(evaluations, 'evaluation')}")
            out.append(f"  estimate: {self._estimate()}")
        models = list(self.parameters.items())
        shown_models = models if limit is None else models[:limit]
        out += [f"  model {label}: {describe(counts)}" for label, counts in shown_models]
        if len(shown_models) < len(models):
            out.append(f"  ... and {_count(len(models) - len(shown_models), 'more model')}")
        out += [f"  note: {note}" for note in self.notes]
        width = max((len(run.run_id) for run in self.runs), default=0)
        # What needs work or attention comes first; what is done is only counted when there is much else.
        ordered = sorted(self.runs, key=lambda run: run.state == "done")
        shown = ordered if limit is None else ordered[:limit]
        out += [f"  {run.run_id:<{width}}  {run.state:<9} {run.reason}".rstrip() for run in shown]
        if len(shown) < len(ordered):
            out.append(f"  ... and {_count(len(ordered) - len(shown), 'more run')}")
        return out

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _estimate(self) -> str:
        if self.work_seconds is None:
            time = "time unknown until steps have been timed"
        elif self.wall_seconds is not None:
            time = f"{duration(self.wall_seconds)} ({duration(self.work_seconds)} of work)"
        else:
            time = f"{duration(self.work_seconds)} of work"
        space = "storage unknown" if self.new_bytes is None else f"{size(self.new_bytes)} of checkpoints"
        return f"{time}, {space}"


def make_plan(
    sweep: Sweep,
    ledger: Ledger,
    *,
    retry_failed: bool = False,
    verify: bool = True,
    step_seconds: Mapping[str, float] | None = None,
    concurrency: int | None = None,
) -> Plan:
    """Compare a sweep's runs with the ledger.

    With `verify`, every record is opened and must be whole; without, the names of files are believed.
    `step_seconds` maps run ids to measured seconds a step, used where the ledger has no history of a run or
    of one with the same model.  `concurrency` is the number of runs at once, where it is known.

    Raises `IdentityError` where a run's folder belongs to another configuration.
    """
    states = survey(ledger, sweep.runs, verify=verify)
    history = History(sweep, states, step_seconds or {})
    keyed: dict[tuple[str, ...], dict[str, str]] = {}
    runs = []
    fixed = any(spec.trains and spec.algorithm.depends_on_steps for spec in sweep.runs)
    present = ledger.run_ids() if fixed else []
    for spec in sweep.runs:
        # Runs of a sweep share their evaluations, so their identities are computed once.
        key = tuple(spec.evaluations)
        if key not in keyed:
            keyed[key] = heads(spec.evaluations)
        run = _plan_run(spec, states.get(spec.run_id), keyed[key], history, retry_failed)
        if run.state == "new" and spec.algorithm.depends_on_steps:
            lengths = stored_lengths(ledger, spec, (r for r in present if r != spec.run_id))
            if lengths:
                run = replace(run, reason=f"{run.reason}; {_not_extended(lengths)}")
        runs.append(run)
    to_do = [run for run in runs if run.state in ("evaluate", "resume", "new")]
    work = _total(run.cost.seconds for run in to_do)
    at_once = (
        sweep.resources.max_concurrent if isinstance(sweep.resources.max_concurrent, int) else concurrency
    )
    wall = None if work is None or at_once is None else work / max(1, min(at_once, len(to_do) or 1))
    space = _total(run.cost.bytes for run in to_do)
    return Plan(
        name=sweep.name,
        runs=tuple(runs),
        notes=sweep.notes,
        trainings_saved=max(0, sweep.points - len(sweep.runs)),
        work_seconds=work,
        wall_seconds=wall,
        new_bytes=None if space is None else round(space),
        parameters=parameters(sweep),
    )


def _plan_run(
    spec: RunSpec, state: RunRecords | None, head: Mapping[str, str], history: History, retry: bool
) -> RunPlan:
    state = state or RunRecords()
    absent = [
        (step, kind)
        for step in spec.milestones
        for kind in head
        if (step, kind, head[kind]) not in state.evaluations
    ]
    if spec.trains:
        # A checkpoint is needed where it was never made, or where an evaluation wants its files.
        wanting = {step for step, _ in absent}
        needed = [
            s for s in spec.milestones if s not in state.recorded or (s in wanting and s not in state.usable)
        ]
    else:
        needed = []
    resume = max((s for s in state.usable if not needed or s < needed[0]), default=0) if needed else 0
    failed = state.failure is not None and not retry and bool(absent or needed)
    items = []
    for step in spec.milestones:
        if spec.trains:
            items.append(_checkpoint_item(step, step in needed, state, resume, failed))
        for kind in head:
            items.append(_evaluation_item(step, kind, (step, kind) in absent, state, failed))
    train_to = needed[-1] if needed else 0
    status: State
    if not absent and not needed:
        status, reason = "done", ""
    elif failed:
        status, reason = "failed", f"failed: {state.failure}; --retry-failed runs it again"
    elif not needed:
        status, reason = "evaluate", _evaluate_reason(items)
    elif resume:
        status, reason = "resume", f"from step {resume} to {train_to}: {_reason_of(items, needed[0])}"
    else:
        status, reason = "new", _reason_of(items, needed[0])
    cost = Cost() if status in ("done", "failed") else history.cost(spec, train_to - resume, needed, absent)
    return RunPlan(spec, status, reason, tuple(items), resume, train_to, cost)


def _checkpoint_item(step: int, needed: bool, state: RunRecords, resume: int, failed: bool) -> Item:
    if not needed:
        return Item(step, None, "done")
    reason = "checkpoint missing" if step in state.recorded else "no record"
    if failed:
        return Item(step, None, "failed", f"failed: {state.failure}; --retry-failed runs it again")
    return Item(
        step, None, "resume" if resume else "new", reason + (f"; from step {resume}" if resume else "")
    )


def _evaluation_item(step: int, kind: str, absent: bool, state: RunRecords, failed: bool) -> Item:
    if not absent:
        return Item(step, kind, "done")
    if failed:
        return Item(step, kind, "failed", f"failed: {state.failure}; --retry-failed runs it again")
    changed = (step, kind) in state.evaluated
    return Item(step, kind, "new", "evaluation settings changed" if changed else "no record")


def _reason_of(items: Iterable[Item], step: int) -> str:
    return next(i.reason for i in items if i.step == step and i.evaluation is None).partition("; from")[0]


def _not_extended(lengths: Iterable[int]) -> str:
    return (
        f"the run of {', '.join(map(str, lengths))} steps that is there cannot be extended or cut, "
        "for the learning rate depends on the number of steps"
    )


def _evaluate_reason(items: Iterable[Item]) -> str:
    """Say which evaluations are missing and why, grouped by kind."""
    grouped: dict[tuple[str, str], list[int]] = {}
    for item in items:
        if item.evaluation is not None and item.state != "done":
            grouped.setdefault((item.evaluation, item.reason), []).append(item.step)
    return ", ".join(
        f"{kind}: {reason} at {'step' if len(steps) == 1 else 'steps'} {', '.join(map(str, steps))}"
        for (kind, reason), steps in grouped.items()
    )


def _total(values: Iterable[float | None]) -> float | None:
    """Return the sum, or None where a part is unknown."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def _count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return seconds for a reader.

    >>> [duration(s) for s in (0.4, 42, 600, 7300, 200000)]
    ['1 s', '42 s', '10 min', '2 h 2 min', '2 d 7 h']
    """
    whole = max(1, round(seconds))
    if whole < 100:
        return f"{whole} s"
    minutes = round(whole / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def size(count: float) -> str:
    """Return bytes for a reader.

    >>> [size(n) for n in (512, 2_000_000, 3.5e9)]
    ['512 B', '2.0 MB', '3.5 GB']
    """
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{round(count)} B"
