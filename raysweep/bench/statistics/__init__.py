"""`raysweep bench statistics`: coverage, level and power of the report's intervals and tests, by simulation.

Sweeps are made up from a model whose answer is known, thousands of times, and analysed by the functions that
the report uses.  A 95 % interval should hold the truth in 95 % of them.  A test at 5 % should find an effect
in 5 % of those that have none.  Shares of n replicates have the standard error √(p (1 − p) / n)
(`raysweep.bench.statistics.goals`).
"""

from __future__ import annotations

import os
from functools import cache

from raysweep.bench.environment import environment, measure_peak
from raysweep.bench.harness import Say
from raysweep.bench.record import Record
from raysweep.bench.statistics.associations import association_simulations
from raysweep.bench.statistics.families import family_simulations
from raysweep.bench.statistics.pairs import pair_simulations
from raysweep.bench.statistics.powerlaws import powerlaw_simulations
from raysweep.bench.statistics.powers import power_simulations
from raysweep.bench.statistics.references import reference_simulations
from raysweep.bench.statistics.simulation import Simulation, simulated
from raysweep.bench.statistics.trace import trace_simulations
from raysweep.bench.statistics.treatments import treatment_simulations

#: Sweeps for each number of a quick record.
QUICK = 60


@cache
def simulations() -> tuple[Simulation, ...]:
    """Return all simulations, in the order of a record."""
    return (
        *association_simulations(),
        *treatment_simulations(),
        *power_simulations(),
        *reference_simulations(),
        *family_simulations(),
        *pair_simulations(),
        *trace_simulations(),
        *powerlaw_simulations(),
    )


def measure(
    *, quick: bool = False, seed: int = 0, processes: int | None = None, say: Say = lambda line: None
) -> Record:
    """Run all simulations and return the record; by default in as many processes as there are cores."""
    every = simulations()

    def replicates(one: Simulation) -> int:
        return min(QUICK, one.replicates) if quick else one.replicates

    count = processes or len(os.sched_getaffinity(0))
    cases = simulated(every, replicates, seed=seed, processes=count, say=say)
    return Record(
        suite="statistics",
        quick=quick,
        environment=environment(1),
        peak=measure_peak(quick=True),
        cases=tuple(cases),
    )
