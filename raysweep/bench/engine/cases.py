"""Short runs on every engine beside the bare loop: equality first, then rounds, then the costs."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from raysweep.bench.engine.launches import Measured, alone, kept, launch
from raysweep.bench.harness import (
    Case,
    Contestant,
    Difference,
    Peer,
    Prepared,
    Say,
    Spent,
    UnavailableError,
)
from raysweep.bench.launching import engines
from raysweep.bench.record import Figure, Goal
from raysweep.errors import RunFailedError

#: Runs of a launch, and those of a quick one.
RUNS, QUICK_RUNS = 8, 4
#: Runs at once.
SLOTS = 2
#: Steps of a run: about 1.5 s on one thread of a processor of 2024.
STEPS, QUICK_STEPS = 600, 50
#: From this number of runs on, the growth of time and memory with the number of runs is a figure.
MANY = 100
#: The number of runs that shows the growth.
THOUSAND = 1000

BARE = "bare loop of pretrain in one process"


def sweep_of(runs: int, steps: int) -> dict[str, Any]:
    """Return the content of the sweep file of `runs` short runs with one cheap evaluation."""
    return {
        "name": "short-runs",
        "language": {"kind": "hmm", "seed": 1, "states": 10, "vocabulary": 20, "length": 8, "tasks": [1]},
        "model": {"kind": "encoder", "shape": "16/1/1/32"},
        "algorithm": {"kind": "adamw", "lr": 1e-3, "warmup_steps": 10},
        "pretrain": {"steps": steps, "batch_size": 16, "precision": "float32"},
        "evaluate": {"excess_loss": {"sentences": 256}},
        "axes": {"seed": list(range(runs))},
        "resources": {"max_concurrent": SLOTS},
    }


@dataclass
class Turns:
    """An engine, or the bare loop without one, and its launches so far.

    The first launch is a warm-up.  Memory is measured in it, and its results are compared.
    """

    engine: str | None
    sweep: dict[str, Any]
    say: Say
    launches: list[Measured] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The name in the table."""
        return BARE if self.engine is None else f"engine {self.engine}"

    @property
    def contestant(self) -> Contestant:
        """The contestant; its units are the runs after warm-up."""
        slots = 1 if self.engine is None else SLOTS
        return Contestant(units=len(self.sweep["axes"]["seed"]) - slots, work=self.work)

    def work(self) -> Spent:
        """Launch the sweep once; raises `RunFailedError` if its results are not those of the first time."""
        found = launch(self.sweep, self.engine, memory=not self.launches)
        self.say(
            f"{self.name}: {found.runs} runs in {found.wall:.1f} s, {found.cpu:.1f} CPU-seconds; "
            f"first step after {found.first_step:.1f} s"
        )
        self.launches.append(found)
        if found.content != self.launches[0].content:
            raise RunFailedError(f"bench engine: two launches of {self.name} have different results")
        return found.spent

    def median(self, cost: Callable[[Measured], float]) -> float:
        """Return the median of a cost over the rounds."""
        return statistics.median(map(cost, self.launches[1:]))

    def overhead(self, bare: Turns, cost: Callable[[Measured], float]) -> float:
        """Return the median over the rounds of a cost beyond that of the bare loop in the same round."""
        pairs = zip(self.launches[1:], bare.launches[1:], strict=True)
        return statistics.median(cost(mine) - cost(theirs) for mine, theirs in pairs)


def short_runs(
    quick: bool,
    *,
    runs: int | None = None,
    steps: int | None = None,
    rounds: int = 3,
    say: Say = lambda line: None,
) -> Case:
    """Return the case: the newest engine beside the others and the bare loop.

    Of `MANY` runs or more, the bare loop is the only peer: with the other engines they would take hours.
    """
    if len(os.sched_getaffinity(0)) < SLOTS:
        raise UnavailableError(f"{SLOTS} runs at once need as many cores")
    count = runs or (QUICK_RUNS if quick else RUNS)
    sweep = sweep_of(count, steps or (QUICK_STEPS if quick else STEPS))
    compared = engines() if count < MANY else engines()[-1:]
    bare, *others = [Turns(engine, sweep, say) for engine in (None, *compared)]
    ours = others.pop()

    def costs() -> list[Figure]:
        # An engine with other results was not launched again.
        timed = [each for each in (ours, *others) if each.launches[1:] and bare.launches[1:]]
        found = [figure for each in timed for figure in figures(each, bare, goals=each is ours)]
        if quick:
            return found
        # Ray's own start is the same, however many runs follow.
        return [*found, *(_kept(count, say) if count >= MANY else _alone(say))]

    return Case(
        unit="run",
        ours=ours.contestant,
        peers=[_peer(other, ours) for other in (bare, *others)],
        rounds=1 if quick else rounds,
        figures=lambda timing, peak: costs(),
    )


def _alone(say: Say) -> list[Figure]:
    """Return what Ray takes without raysweep, with `SLOTS` trials at once."""
    found = alone(SLOTS)
    say(f"Ray alone: first step after {found.first_step:.1f} s, {found.memory:.2f} GiB")
    return [
        Figure(name="Ray alone: start to first step", unit="s", value=found.first_step),
        Figure(name="Ray alone: memory of all processes at the peak (PSS)", unit="GiB", value=found.memory),
        Figure(name="Ray alone: most processes at once", unit="", value=float(found.processes)),
    ]


def _kept(runs: int, say: Say) -> list[Figure]:
    """Return what Tune and MLflow keep without raysweep in a process that drives so many trials."""
    found = kept(runs)
    say(f"Tune alone: {found.trial / 1e3:.0f} kB a trial; MLflow alone: {found.client / 1e6:.0f} MB")
    return [
        Figure(name="Tune alone: driver's memory for a trial", unit="kB", value=found.trial / 1e3),
        Figure(name="MLflow alone: memory of its client and store", unit="MB", value=found.client / 1e6),
    ]


def many_runs(quick: bool, *, say: Say = lambda line: None) -> Case:
    """Return the case of `THOUSAND` runs of some steps, launched once after a warm-up."""
    return short_runs(quick, runs=THOUSAND, steps=QUICK_STEPS, rounds=1, say=say)


def _peer(other: Turns, ours: Turns) -> Peer:
    def check() -> Difference:
        other.work()
        return Difference(
            quantity="tidy tables and weights that differ",
            value=other.launches[0].content.unlike(ours.launches[0].content),
            tolerance=0,
        )

    return Peer(name=other.name, prepare=lambda: Prepared(check=check, contestant=other.contestant))


def figures(ours: Turns, bare: Turns, *, goals: bool = False) -> list[Figure]:
    """Return the costs of an engine: those of a run after warm-up, of the start, and of many runs."""

    def figure(name: str, unit: str, value: float, most: float) -> Figure:
        goal = Goal(sense="at most", value=most) if goals else None
        return Figure(name=f"{ours.name}: {name}", unit=unit, value=value, goal=goal)

    found = [
        figure("wall time of a run beyond the bare loop's", "s", ours.overhead(bare, _wall), 1.0),
        figure("CPU time of a run beyond the bare loop's", "s", ours.overhead(bare, _cpu), 1.5),
        figure("launch to first step", "s", ours.median(lambda m: m.first_step), 8.0),
        figure("memory of all processes at the peak (PSS)", "GiB", ours.launches[0].memory, 1.2),
    ]
    facts = {
        ("most processes at once", ""): float(ours.launches[0].processes),
        ("CPU time of a whole launch, for each run", "s"): ours.median(lambda m: m.cpu / m.runs),
        ("wall time of a whole launch", "s"): ours.median(lambda m: m.wall),
        ("last result to the end of the last process", "s"): ours.median(lambda m: m.leaving),
    }
    found += [Figure(name=f"{ours.name}: {name}", unit=u, value=value) for (name, u), value in facts.items()]
    if ours.launches[0].runs >= MANY:
        found += [
            figure("second half of the runs by the first, wall", "×", ours.median(lambda m: m.slowing), 1.1),
            figure("driver's memory at the end by the start", "×", ours.median(lambda m: m.growing), 1.1),
            Figure(
                name=f"{ours.name}: driver's memory for a run, after the first hundred",
                unit="kB",
                value=ours.median(lambda m: m.each) / 1e3,
            ),
        ]
    return found


def _wall(measured: Measured) -> float:
    return measured.spent.wall / measured.counted


def _cpu(measured: Measured) -> float:
    return measured.spent.cpu / measured.counted
