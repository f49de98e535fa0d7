"""`raysweep bench statistics`: coverage, level and power of the report's intervals and tests, by simulation.

Sweeps are made up from a model whose answer is known, thousands of times, and analysed by the functions that
the report uses.  A 95 % interval should hold the truth in 95 % of them.  A test at 5 % should find an effect
in 5 % of those that have none.  Shares of n replicates have the standard error √(p (1 − p) / n).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from raysweep.bench.environment import environment, measure_peak
from raysweep.bench.harness import Say
from raysweep.bench.record import CaseRecord, Record
from raysweep.bench.statistics.associations import association_cases
from raysweep.bench.statistics.families import family_cases
from raysweep.bench.statistics.pairs import pair_cases
from raysweep.bench.statistics.powerlaws import powerlaw_cases
from raysweep.bench.statistics.references import reference_cases
from raysweep.bench.statistics.trace import trace_cases
from raysweep.bench.statistics.treatments import treatment_cases

#: Each makes the cases of one kind of interval, given `replicates` and `seed`.
SIMULATIONS: Sequence[Callable[..., list[CaseRecord]]] = (
    association_cases,
    treatment_cases,
    reference_cases,
    family_cases,
    pair_cases,
    trace_cases,
    powerlaw_cases,
)
#: Sweeps for each number, and those of a quick record.
REPLICATES, QUICK = 2000, 60


def measure(*, quick: bool = False, seed: int = 0, say: Say = lambda line: None) -> Record:
    """Run all simulations in this process and return the record."""
    cases: list[CaseRecord] = []
    for simulation in SIMULATIONS:
        say(f"simulating: {simulation.__name__}")
        cases += simulation(replicates=QUICK if quick else REPLICATES, seed=seed)
    return Record(
        suite="statistics",
        quick=quick,
        environment=environment(1),
        peak=measure_peak(quick=True),
        cases=tuple(cases),
    )
