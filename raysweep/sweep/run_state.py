"""The state of every run, as plain data: for the live table, for lines in a pipe, for a program.

`run_states` reads it from the ledger.  While a launch is at work, the engine keeps it up to date.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from raysweep.evaluation.metric import Metric
from raysweep.remote import listed
from raysweep.sweep.config import Sweep
from raysweep.sweep.names import labels
from raysweep.sweep.run import RunSpec
from raysweep.sweep.snapshot import Metrics, Snapshot
from raysweep.sweep.starts import Starts, starts

#: `blocked`: the run waits for the checkpoint that it starts from.  `unfinished`: the run was begun, and as
#: far as known nobody is working on it.  `stopped`: a search has stopped it, and what it reached is measured.
State = Literal[
    "queued",
    "blocked",
    "starting",
    "training",
    "evaluating",
    "unfinished",
    "done",
    "stopped",
    "failed",
    "cancelled",
]


@dataclass(frozen=True)
class Evaluated:
    """The evaluations of one kind of a run: how many are done, parts included, of how many, in how long."""

    done: float
    wanted: int
    seconds: float


@dataclass(kw_only=True)
class RunState:
    """The state of one run; `eta` is the seconds to its end, None if they are not known.

    `tokens_per_second` and `mfu` are means over its training; while a launch is at work, over that of the
    latest attempt.  `metrics` are those of the milestone `evaluated`, which training may have left far
    behind.
    """

    run_id: str
    model: str
    #: Its name for people: the values of its axes, or its id if it has none.
    label: str
    state: State = "queued"
    step: int = 0
    steps: int = 0
    steps_per_second: float | None = None
    tokens_per_second: float | None = None
    mfu: float | None = None
    metrics: Sequence[Metric] = ()
    evaluated: int = 0
    #: Shards of its evaluations: those that this attempt has measured, and those it has asked for.
    shards: tuple[int, int] = (0, 0)
    #: Its evaluations by kind, at all milestones.
    evaluations: dict[str, Evaluated] = field(default_factory=dict)
    #: Seconds of its training and of its evaluations, of all attempts.
    seconds: float = 0.0
    eta: float | None = None
    #: The trouble that left it unfinished, or the reason of its failure.
    trouble: str = ""


@dataclass(frozen=True, kw_only=True)
class LaunchState:
    """The states of all runs, and the progress of the sweep (`raysweep.sweep.progress`).

    `elapsed` is seconds since the start, `share` the share of all work that is done, `left` the least and the
    most seconds to the end of the launch, its report included; the last two are None as long as they are not
    known.
    """

    runs: list[RunState]
    elapsed: float
    share: float | None = None
    left: tuple[float, float] | None = None

    @property
    def steps(self) -> tuple[int, int]:
        """Steps of training that are done, and all."""
        return sum(run.step for run in self.runs), sum(run.steps for run in self.runs)

    @property
    def evaluations(self) -> tuple[int, int]:
        """Evaluations that are done as a whole, and all."""
        found = [kind for run in self.runs for kind in run.evaluations.values()]
        return sum(int(kind.done) for kind in found), sum(kind.wanted for kind in found)


class Pace:
    """Steps per second over the last half minute, a steadier figure than the last half second."""

    def __init__(self, memory: float = 30.0) -> None:
        self._memory = memory
        self._seen: deque[tuple[float, int]] = deque()

    def see(self, now: float, step: int) -> float | None:
        """Note the step reached at a time in seconds; return the pace, or None in the first two seconds.

        >>> pace = Pace()
        >>> [pace.see(t, 10 * t) for t in (0, 1, 2, 4)]
        [None, None, 10.0, 10.0]
        """
        self._seen.append((now, step))
        while now - self._seen[0][0] > self._memory:
            self._seen.popleft()
        since, first = self._seen[0]
        return (step - first) / (now - since) if now - since >= 2.0 else None


def run_states(sweep: Sweep, snapshot: Snapshot | None = None, waits: Starts | None = None) -> list[RunState]:
    """Return the state of every run according to its records alone.

    They are those of a `snapshot`, with its `waits`, where a caller has them.
    """
    with listed(sweep.directory):
        snapshot = snapshot or Snapshot.of(sweep)
        return _run_states(sweep, snapshot, waits or starts(sweep, snapshot=snapshot))


def _run_states(sweep: Sweep, snapshot: Snapshot, waits: Starts) -> list[RunState]:
    names = labels(sweep.runs)
    rows = []
    for spec in sweep.runs:
        row = RunState(
            run_id=spec.run_id,
            model=spec.model_label,
            label=names[spec.run_id],
            steps=spec.milestones[-1],
        )
        # Of thousands of runs, most have no records yet.
        begun, why, wait = spec.run_id in snapshot, waits.failure(spec), waits.wait(spec)
        may_be = why is None and wait is None and (begun or not spec.trains)
        done = may_be and waits.missing(spec).finished
        # Nobody needs the checkpoints of a run that is done, so their folders are not looked for.
        usable = () if done else waits.usable(spec)
        if begun:
            _read(row, snapshot, spec, usable)
        else:
            row.evaluations = {kind: Evaluated(0, len(spec.milestones), 0.0) for kind in spec.evaluations}
        if why is not None:
            row.state = "cancelled" if waits.cancelled(spec) else "failed"
            row.trouble = " ".join(why.split())
        elif wait is not None:
            row.state = "blocked"
        elif done:
            row.state, row.step = "done" if spec.stopped is None else "stopped", row.steps
        elif row.step or usable:
            row.state = "unfinished"
        rows.append(row)
    return rows


def _read(row: RunState, snapshot: Snapshot, spec: RunSpec, usable: Collection[int]) -> None:
    """Read what a run has done into its row; `usable` are the steps of its checkpoints that have a folder."""
    took: dict[str, list[float]] = {kind: [] for kind in spec.evaluations}
    found = snapshot.evaluations(spec)
    for _, kind, at in found:
        took[kind].append(snapshot.seconds(at))
    # The newest milestone with metrics: evaluations come in the order of steps.
    newest = next((step for step, _, at in reversed(found) if snapshot.measured(at)), None)
    if newest is not None:
        rows = [at for step, _, at in found if step == newest]
        row.step, row.evaluated, row.metrics = newest, newest, Metrics(snapshot, rows)
    for kind, seconds in took.items():
        row.evaluations[kind] = Evaluated(len(seconds), len(spec.milestones), sum(seconds))
    row.step = min(max([row.step, *usable]), row.steps)
    row.seconds = sum(kind.seconds for kind in row.evaluations.values())
    # Checkpoints that are not kept leave their records.
    checkpoints = snapshot.checkpoints(spec.run_id)
    row.seconds += snapshot.seconds(checkpoints[-1]) if checkpoints else 0.0
    row.tokens_per_second, row.mfu = snapshot.speed(checkpoints)
