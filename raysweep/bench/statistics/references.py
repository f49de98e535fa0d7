"""Coverage and level of the claim that trained models beat the look-up table.

Accuracy of run r for seed s of the probe, and that of the table,

    a_rs = μ + A_r + B_s + E_rs,        t_s = B_s + E_s

with A ~ N(0, σ²), B ~ N(0, 4) and E ~ N(0, 1): what a seed's training set and projection do to all alike, and
what they do to one.  The effect is μ.  It shifts estimates and not their errors, so the level is one less the
coverage, and both are of μ = 0.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from raysweep.bench.record import Figure
from raysweep.bench.statistics import goals
from raysweep.bench.statistics.simulation import Outcomes, Simulation
from raysweep.report.reference import by_numbers, by_seeds

#: Numbers of runs.
RUNS = (3, 6, 12, 20)
#: Seeds of the probe, and the standard deviation of what a seed does to all runs and to the table.
SEEDS, OF_SEED = 5, 2.0
#: Standard deviations between runs: far above that of the probe's seeds, alike, and far below.
SPREADS = {"runs apart": 10.0, "runs as apart as seeds": 1.0, "runs alike": 0.1}


def reference_simulations() -> list[Simulation]:
    """Return a simulation for each number of runs."""
    return [
        Simulation(
            key=f"table, {runs} runs",
            work=f"the look-up table beside {runs} runs, {SEEDS} seeds of the probe",
            sample=partial(_sample, runs),
            figures=_figures,
            replicates=goals.MANY,
            cost=2.0,
        )
        for runs in RUNS
    ]


def _sample(runs: int, size: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for name, spread in SPREADS.items():
        ours, table = draw(size, runs, spread, generator)
        error = table.std(axis=-1, ddof=1) / np.sqrt(SEEDS)
        found |= goals.kept(f"by seeds, {name}", by_seeds(ours - table[:, None, :]))
        alone = by_numbers(ours.mean(axis=-1), table.mean(axis=-1), error)
        found |= goals.kept(f"independent, {name}", alone)
    return found


def _figures(outcomes: Outcomes) -> list[Figure]:
    figures = []
    for name in (name.removesuffix(": p") for name in outcomes if name.endswith(": p")):
        figures += goals.coverage(f"beats: coverage, {name}", outcomes, name, 0.0)
        figures.append(goals.share(f"beats: level, {name}", goals.rejected(outcomes, name), goals.LEVEL))
    return figures


def draw(
    replicates: int, runs: int, spread: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return accuracies of runs [replicates, runs, seeds] and of the table [replicates, seeds]; μ is 0."""
    of_run = spread * generator.standard_normal((replicates, runs, 1))
    of_seed = OF_SEED * generator.standard_normal((replicates, 1, SEEDS))
    ours = of_run + of_seed + generator.standard_normal((replicates, runs, SEEDS))
    return ours, of_seed[:, 0] + generator.standard_normal((replicates, SEEDS))
