"""`raysweep bench engine`: the cost of short runs in a sweep, beside a bare loop of `pretrain`.

A small sweep is launched again and again, each time as a process of its own in a new folder, with every
engine in turn.  The peer is one process that trains and evaluates the same runs one after another.  A unit is
a run after warm-up: the first run of each lane pays for imports and is left out.  CPU time is that of all
processes of the launch.  Wall time is that of a lane, so that two lanes at work count twice.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from raysweep.bench.engine.cases import many_runs, short_runs
from raysweep.bench.engine.commands import many_records
from raysweep.bench.environment import environment, measure_peak
from raysweep.bench.harness import Entry, Say, run_case
from raysweep.bench.record import Record

ENTRIES = (
    Entry(key="short-runs", work="a sweep of runs of about 1.5 s of training", build=short_runs),
    Entry(key="many-runs", work="a thousand runs of 50 steps", build=many_runs),
    Entry(key="many-records", work="commands on the records of 10,000 runs, made up", build=many_records),
)


def measure(
    *, runs: int | None = None, rounds: int = 3, quick: bool = False, say: Say = lambda line: None
) -> Record:
    """Launch a sweep of `runs` runs in `rounds` rounds with every engine, and return the record.

    The thousand runs and the records are left out of a quick record, and where `runs` says how many it
    should be.
    """
    torch.set_num_threads(1)
    peak = measure_peak(quick)
    short, many, records = ENTRIES
    entries = [replace(short, build=partial(short_runs, runs=runs, rounds=rounds, say=say))]
    if not quick and runs is None:
        entries.append(replace(many, build=partial(many_runs, say=say)))
        entries.append(replace(records, build=partial(many_records, say=say)))
    cases = tuple(run_case(entry, peak, quick=quick, say=say) for entry in entries)
    return Record(suite="engine", quick=quick, environment=environment(1), peak=peak, cases=cases)
