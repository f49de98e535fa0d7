"""Coverage and level of the claim that trained models beat the look-up table.

Accuracy of run r for seed s of the probe, and that of the table,

    a_rs = μ + A_r + B_s + E_rs,        t_s = B_s + E_s

with A ~ N(0, σ²), B ~ N(0, 4) and E ~ N(0, 1): what a seed's training set and projection do to all alike, and
what they do to one.  The effect is μ.  It shifts estimates and not their errors, so the level is one less the
coverage, and both are of μ = 0.
"""

from __future__ import annotations

import numpy as np

from raysweep.bench.record import CaseRecord, Figure
from raysweep.bench.statistics.goals import COVERAGE, LEVEL, batches, covered, rejected
from raysweep.report.association import Estimate
from raysweep.report.reference import by_numbers, by_seeds

#: Numbers of runs.
RUNS = (3, 6, 12, 20)
#: Seeds of the probe, and the standard deviation of what a seed does to all runs and to the table.
SEEDS, OF_SEED = 5, 2.0
#: Standard deviations between runs: far above that of the probe's seeds, alike, and far below.
SPREADS = {"runs apart": 10.0, "runs as apart as seeds": 1.0, "runs alike": 0.1}


def reference_cases(*, replicates: int, seed: int) -> list[CaseRecord]:
    """Return a case for each number of runs."""
    return [_case(runs, replicates, np.random.default_rng((seed, runs))) for runs in RUNS]


def _case(runs: int, replicates: int, generator: np.random.Generator) -> CaseRecord:
    figures = []
    for name, spread in SPREADS.items():
        found: dict[str, list[Estimate]] = {"by seeds": [], "independent": []}
        for size in batches(replicates):
            ours, table = draw(size, runs, spread, generator)
            found["by seeds"].append(by_seeds(ours - table[:, None, :]))
            error = table.std(axis=-1, ddof=1) / np.sqrt(SEEDS)
            found["independent"].append(by_numbers(ours.mean(axis=-1), table.mean(axis=-1), error))
        for way, estimates in found.items():
            share, _ = covered(estimates, 0.0)
            figures.append(
                Figure(name=f"beats: coverage, {way}, {name}", unit="", value=share, goal=COVERAGE)
            )
            figures.append(
                Figure(name=f"beats: level, {way}, {name}", unit="", value=rejected(estimates), goal=LEVEL)
            )
    figures.append(Figure(name="replicates", unit="", value=float(replicates)))
    work = f"the look-up table beside {runs} runs, {SEEDS} seeds of the probe"
    return CaseRecord(key=f"table, {runs} runs", work=work, unit="sweep", figures=tuple(figures))


def draw(
    replicates: int, runs: int, spread: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return accuracies of runs [replicates, runs, seeds] and of the table [replicates, seeds]; μ is 0."""
    of_run = spread * generator.standard_normal((replicates, runs, 1))
    of_seed = OF_SEED * generator.standard_normal((replicates, 1, SEEDS))
    ours = of_run + of_seed + generator.standard_normal((replicates, runs, SEEDS))
    return ours, of_seed[:, 0] + generator.standard_normal((replicates, SEEDS))
