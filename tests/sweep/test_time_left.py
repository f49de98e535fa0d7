"""The range of the time left in launches of many sorts, which are played through twice a second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pytest

from raysweep.sweep.progress import Progress
from raysweep.sweep.run_state import Evaluated, RunState

LOOK = 0.5
STEPS, MILESTONES, SHARDS = 1000, 3, 4
KINDS = {"excess_loss": 0.2, "trace": 0.5, "probe": 0.3}


class Told(NamedTuple):
    """A look: time, seconds that are truly left, their range, and the seconds of each run."""

    now: float
    true: float
    left: tuple[float, float] | None
    runs: dict[str, float]


@dataclass(kw_only=True)
class Launch:
    """A launch of alike runs, `slots` at once, whose seconds are those of an idle machine.

    A run starts, trains with news at every look, and is measured with news of whole shards, which
    come with the next look.
    """

    runs: int
    slots: int = 2
    #: Seconds of a run: of its training, and of all its evaluations.
    training: float
    measuring: float
    #: Seconds before the first run starts, before each run trains, and before its first shard.
    start: float = 8.0
    each: float = 1.0
    wait: float = 2.0
    #: The times that all takes on a busy machine, and the times that were expected.
    load: float = 1.0
    expected: float = 1.0
    #: The share of runs that are recorded as a whole, and of the training of the others.
    recorded: float = 0.0
    trained: float = 0.0
    at_work: list[_Run] = field(init=False, default_factory=list)

    def play(self) -> list[Told]:
        """Return the looks until the end."""
        runs = [_Run(self, k) for k in range(self.runs)]
        rows = [run.row for run in runs]
        kinds = {kind: share * self.measuring / MILESTONES for kind, share in KINDS.items()}
        progress = Progress(
            rows,
            {row.run_id: self.expected * self.training / STEPS for row in rows},
            {(row.run_id, kind): self.expected * took for row in rows for kind, took in kinds.items()},
            slots=self.slots,
            now=0.0,
        )
        seen: list[tuple[float, tuple[float, float] | None, dict[str, float]]] = []
        now = 0.0
        while any(row.state != "done" for row in rows):
            _, left = progress.see(now, rows)
            seen.append((now, left, dict(progress.runs)))
            now += LOOK
            if now > self.start * self.load:
                for run in [run for run in runs if run.row.state != "done"][: self.slots]:
                    run.work(LOOK / self.load)
        return [Told(time, now - time, left, each) for time, left, each in seen]


class _Run:
    def __init__(self, launch: Launch, k: int) -> None:
        whole = k < launch.recorded * launch.runs
        self.launch = launch
        self.parts = self._parts()
        self.row = RunState(run_id=f"run{k}", model="m", label="", steps=STEPS, evaluations={})
        took = launch.load * launch.measuring / MILESTONES
        self.row.evaluations = {
            kind: Evaluated(MILESTONES * whole, MILESTONES, whole * MILESTONES * took * share)
            for kind, share in KINDS.items()
        }
        if whole:
            self.row.state, self.row.step = "done", STEPS
        else:
            self.row.step = int(launch.trained * STEPS)
        self.first = self.row.step
        self.name, self.seconds = next(self.parts)
        self.spent = 0.0

    def _parts(self) -> Iterator[tuple[str, float]]:
        """Yield the parts of the work with their seconds on an idle machine."""
        launch = self.launch
        yield "starting", launch.each
        yield "training", (1 - launch.trained) * launch.training
        yield "", launch.wait
        for _ in range(MILESTONES):
            for kind, share in KINDS.items():
                for _ in range(SHARDS):
                    yield kind, launch.measuring * share / MILESTONES / SHARDS

    def work(self, seconds: float) -> None:
        """Work for so many seconds of an idle machine."""
        row, load = self.row, self.launch.load
        self.spent += seconds
        while self.spent >= self.seconds:
            self.spent -= self.seconds
            if self.name in KINDS:
                of = row.evaluations[self.name]
                row.evaluations[self.name] = Evaluated(
                    min(MILESTONES, of.done + 1 / SHARDS), MILESTONES, of.seconds + load * self.seconds
                )
            elif self.name == "training":
                row.step = STEPS
            self.name, self.seconds = next(self.parts, ("done", np.inf))
        if self.name in ("starting", "training"):
            row.state = self.name
        else:
            row.state = "done" if self.name == "done" else "evaluating"
        if self.name == "training":
            row.step = int(self.first + (STEPS - self.first) * self.spent / self.seconds)


HISTORIES = {
    "fresh": Launch(runs=4, training=60.0, measuring=40.0),
    "one short run": Launch(runs=1, training=14.0, measuring=8.0, start=3.0),
    "one short run, loaded": Launch(runs=1, training=14.0, measuring=8.0, start=3.0, load=2.0),
    "one long run": Launch(runs=1, training=200.0, measuring=60.0),
    "loaded": Launch(runs=4, training=60.0, measuring=40.0, load=2.0),
    "expected too long": Launch(runs=4, training=60.0, measuring=40.0, expected=1.8),
    "evaluations only": Launch(runs=6, training=100.0, measuring=30.0, trained=1.0),
    "evaluations only, loaded": Launch(runs=6, training=100.0, measuring=30.0, trained=1.0, load=2.0),
    "resumed": Launch(runs=20, training=60.0, measuring=30.0, recorded=0.9, trained=0.7, start=20.0),
    "resumed, loaded": Launch(
        runs=20, training=60.0, measuring=30.0, recorded=0.9, trained=0.7, start=20.0, load=2.0
    ),
    "many runs": Launch(runs=40, training=20.0, measuring=10.0),
    "many nested runs": Launch(runs=16, training=40.0, measuring=10.0, each=10.0),
    "nested runs in one slot": Launch(runs=8, slots=1, training=40.0, measuring=10.0, each=10.0),
    "many slots": Launch(runs=48, slots=16, training=40.0, measuring=20.0),
}


@pytest.fixture(scope="module", params=HISTORIES)
def told(request: pytest.FixtureRequest) -> list[Told]:
    return HISTORIES[request.param].play()


def test_a_range_is_told_in_most_of_a_launch(told: list[Told]) -> None:
    assert sum(look.left is not None for look in told) >= 0.8 * len(told)


def test_the_end_is_in_the_range_or_near_after_the_first_third(told: list[Told]) -> None:
    late = [look for look in told[len(told) // 3 :] if look.left is not None]
    held = [look.left[0] - 5 <= 1.15 * look.true and look.true / 1.15 <= look.left[1] + 5 for look in late]
    assert sum(held) >= 0.95 * len(held)


def test_nothing_absurd_is_told(told: list[Told]) -> None:
    """No end of a range is far from what a launch takes, nor the time of a run, nor are they far apart."""
    whole = told[0].true
    for look in told:
        if look.left is not None:
            least, most = look.left
            assert 0 <= least <= most <= max(3 * least, least + 60)
            assert least <= 1.5 * look.true + 10
            assert most <= (2.5 if look.now < whole / 10 else 1.5) * whole + 30
        assert all(seconds <= 1.5 * whole + 30 for seconds in look.runs.values())


def test_the_range_of_a_long_launch_is_narrow_in_its_middle() -> None:
    for name in ("one long run", "many runs", "many slots"):
        looks = HISTORIES[name].play()
        middle = looks[len(looks) // 2]
        assert middle.left is not None
        assert middle.left[1] <= 1.8 * middle.left[0]
