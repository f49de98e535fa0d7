"""Simulations in parts: each part draws sweeps of its own, in any process, and all outcomes are counted.

A part is seeded by the seed of the record, the key of its simulation and its own number.  So outcomes do not
depend on the number of processes.  Every process has one thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np

from raysweep.bench.harness import Say
from raysweep.bench.process import VARIABLES
from raysweep.bench.record import CaseRecord, Figure

Array = np.ndarray

#: Outcomes by name, one for each replicate [n].
Outcomes = Mapping[str, Array]
#: Seconds between two lines of progress.
EVERY = 30.0


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A case: `sample(size, generator)` makes up and analyses so many sweeps, `figures` counts all outcomes.

    A full record has `replicates`, drawn in parts of at most `part`.  `cost` is the CPU time of a replicate
    in milliseconds, roughly: it orders the parts and tells how long the rest takes.
    """

    key: str
    work: str
    sample: Callable[[int, np.random.Generator], Outcomes]
    figures: Callable[[Outcomes], Sequence[Figure]]
    replicates: int
    cost: float
    part: int = 250
    unit: str = "sweep"

    def parts(self, replicates: int) -> Iterator[int]:
        """Yield the sizes of the parts of so many replicates."""
        for start in range(0, replicates, self.part):
            yield min(self.part, replicates - start)

    def drawn(self, part: int, size: int, seed: int) -> Outcomes:
        """Return the outcomes of a part."""
        return self.sample(size, np.random.default_rng([seed, part, *self.key.encode()]))

    def counted(self, parts: Sequence[Outcomes]) -> CaseRecord:
        """Return the record of all parts, in their order."""
        outcomes = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        figures = [*self.figures(outcomes)]
        count = len(next(iter(outcomes.values())))
        figures.append(Figure(name="replicates", unit="", value=float(count)))
        return CaseRecord(key=self.key, work=self.work, unit=self.unit, figures=tuple(figures))


def simulated(
    simulations: Sequence[Simulation],
    replicates: Callable[[Simulation], int],
    *,
    seed: int,
    processes: int,
    say: Say,
) -> list[CaseRecord]:
    """Run all parts of `simulations` in so many processes and return their records, in order.

    Those of no replicates are left out.  `simulations` are those of
    `raysweep.bench.statistics.simulations()`, which each process makes anew.
    """
    tasks = [
        (place, part, size)
        for place, one in enumerate(simulations)
        for part, size in enumerate(one.parts(replicates(one)))
    ]
    cost = {task: simulations[task[0]].cost * task[2] for task in tasks}
    tasks.sort(key=lambda task: -cost[task])
    found: dict[tuple[int, int], Outcomes] = {}
    began = said = time.monotonic()
    done, whole = 0.0, sum(cost.values())
    say(f"{len(tasks)} parts of {len(simulations)} simulations in {processes} processes")
    context = get_context("spawn")
    with _one_thread(), ProcessPoolExecutor(processes, mp_context=context) as pool:
        waiting = {pool.submit(_part, *task, seed): task for task in tasks}
        for future in as_completed(waiting):
            task = waiting[future]
            found[task[:2]] = future.result()
            done += cost[task]
            now = time.monotonic()
            if now - said >= EVERY:
                said, left = now, (now - began) * (whole / done - 1)
                say(f"{100 * done / whole:.0f} % of the work, about {left / 60:.0f} minutes left")
    return [
        one.counted([found[place, part] for part, _ in enumerate(one.parts(replicates(one)))])
        for place, one in enumerate(simulations)
        if replicates(one)
    ]


def _part(place: int, part: int, size: int, seed: int) -> Outcomes:
    """Return the outcomes of a part; the process knows the simulations by their place."""
    from raysweep.bench.statistics import simulations

    return simulations()[place].drawn(part, size, seed)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Set the number of threads of the processes that start meanwhile: libraries read it when they load."""
    before = {name: os.environ.get(name) for name in VARIABLES}
    os.environ.update(dict.fromkeys(VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
