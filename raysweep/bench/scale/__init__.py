"""`raysweep bench scale`: the costs that one launch has once, whatever the size of its cluster.

A launch has one driver, one control store of Ray, one notice board, one storage and one MLflow.  What a run
costs each of them is measured here (`raysweep.bench.scale.constants`), and from that follows how busy they
are where thousands of runs go on at once, and how many GPUs it takes until one of them is full
(`raysweep.bench.scale.model`).  That is arithmetic: no cluster of that size is measured.
"""

from __future__ import annotations

from raysweep.bench.environment import environment, measure_peak
from raysweep.bench.harness import Say
from raysweep.bench.record import CaseRecord, Record
from raysweep.bench.scale.constants import measured
from raysweep.bench.scale.model import Demand, figures

#: Minutes of the runs that are simulated: short ones are the harder case.
MINUTES = (1.0, 10.0, 60.0)


def measure(
    *,
    gpus: int = 1000,
    runs: int = 10_000,
    price: float | None = None,
    quick: bool = False,
    say: Say = lambda line: None,
) -> Record:
    """Measure the costs of a run, and return them with what they mean for `runs` runs on `gpus` GPUs.

    `price` is that of a GPU for an hour.
    """
    peak = measure_peak(quick)
    costs = measured(quick=quick, say=say)
    cases = [
        CaseRecord(key="costs", work="what runs, calls and looks cost", unit="", figures=costs.figures())
    ]
    for minutes in MINUTES:
        demand = Demand(gpus=gpus, runs=runs, seconds=60 * minutes)
        work = (
            f"{runs:,} runs of {minutes:g} min on {gpus:,} GPUs, one each, {demand.points:,} points in MLflow"
        )
        found = figures(costs, demand, price)
        cases.append(CaseRecord(key=f"{minutes:g} min", work=work, unit="", figures=found))
    return Record(suite="scale", quick=quick, environment=environment(1), peak=peak, cases=tuple(cases))


def introduction(record: Record) -> str:
    """Return the sentences above the tables: the sweeps, and where one of them fills a part."""
    *_, last = record.cases
    sweep = last.work.replace(f"of {last.key} ", "")
    missed = {
        case.key: [figure.name.partition(": cores")[0] for figure in case.figures if figure.met is False]
        for case in record.cases
    }
    said = [
        f"with runs of {key}, {' and '.join(names)} {'are' if names[1:] else 'is'} full"
        for key, names in missed.items()
        if names
    ]
    verdict = "; ".join(said) or "no part is full"
    return f"The sweeps are {sweep}; each column is the time of a run's training: {verdict}."
