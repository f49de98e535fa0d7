"""Coverage and power of the effects of what a sweep sets: steps, size and algorithm.

Log losses fall along a run and level off, and larger models have smaller ones.  An effect shifts estimates
and not their errors, so the level is one less the coverage.
"""

from __future__ import annotations

import numpy as np

from raysweep.bench.record import CaseRecord, Figure
from raysweep.bench.statistics.goals import COVERAGE, batches, covered, rejected
from raysweep.bench.statistics.population import Design
from raysweep.report.association import Estimate, beside, coefficient, indicators, smooth, strata
from raysweep.report.matching import by_pairs, equal

#: Sizes, seeds of each and checkpoints.  Every second run has the other algorithm.
DESIGNS = {"3 sizes × 2": Design(3, 2, 4), "5 sizes × 2": Design(5, 2, 4), "3 sizes × 4": Design(3, 4, 6)}
#: The true effect: of a doubling, or between the algorithms, in units of the noise of a checkpoint.
EFFECT = 0.5
#: Difference of log losses up to which they count as equal.
NEAR = 0.1
#: Fall of the log loss with each doubling of size, and its standard deviation at a checkpoint.
OF_SIZE, SPREAD = 0.7, 0.2


def treatment_cases(*, replicates: int, seed: int) -> list[CaseRecord]:
    """Return a case for each design."""
    return [_case(name, design, replicates, seed + k) for k, (name, design) in enumerate(DESIGNS.items())]


def _case(name: str, design: Design, replicates: int, seed: int) -> CaseRecord:
    generator = np.random.default_rng(seed)
    figures = []
    for what in ("longer", "larger", "algorithm"):
        found: dict[str, list[Estimate]] = {}
        for size in batches(replicates):
            for way, estimate in _estimates(what, design, size, generator).items():
                found.setdefault(way, []).append(estimate)
        for way, estimates in found.items():
            share, known = covered(estimates, EFFECT)
            if known > 0:
                figures.append(Figure(name=f"{what}: coverage, {way}", unit="", value=share, goal=COVERAGE))
            figures.append(Figure(name=f"{what}: power, {way}", unit="", value=rejected(estimates)))
            figures.append(Figure(name=f"{what}: without an interval, {way}", unit="", value=1 - known))
    figures.append(Figure(name="replicates", unit="", value=float(replicates)))
    work = f"effects of steps, size and algorithm: {design.configurations} sizes with {design.seeds} seeds"
    return CaseRecord(key=name, work=work, unit="sweep", figures=tuple(figures))


def _estimates(
    what: str, design: Design, replicates: int, generator: np.random.Generator
) -> dict[str, Estimate]:
    """Return the effect of a treatment by each way to hold the loss, as the report has it."""
    run, size = design.run, design.configuration
    shape = replicates, len(run)
    log_loss = -2 * (1 - np.exp(-design.step)) - OF_SIZE * size + SPREAD * generator.standard_normal(shape)
    noise = generator.standard_normal((replicates, design.runs))[:, run] + generator.standard_normal(shape)
    match what:
        case "longer":
            x, groups = design.step.astype(float), run
        case "larger":
            x, groups = size.astype(float), np.zeros_like(run)
        case _:
            x, groups = (run % 2).astype(float), size
    y = -log_loss + 0.2 * log_loss**2 + EFFECT * x + noise
    every = np.broadcast_to(x, y.shape)
    place = log_loss - log_loss.mean(axis=-1, keepdims=True)
    place = place / place.std(axis=-1, keepdims=True)
    blocks = indicators(groups)
    n = len(run)
    pairs = equal(log_loss, np.zeros((n, n)), NEAR)
    pairs = pairs & (groups[:, None] == groups[None, :]) & (x[:, None] != x[None, :])
    return {
        "smooth": coefficient(every, y, beside(smooth(place), blocks), run),
        "strata": coefficient(every, y, beside(strata(log_loss), blocks), run),
        "pairs": by_pairs(every, y, pairs, run, correlation=False),
    }
