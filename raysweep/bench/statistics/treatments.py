"""Coverage and power of the effects of what a sweep sets: steps, size and algorithm.

Log losses fall along a run and level off, and larger models have smaller ones.  An effect shifts estimates
and not their errors, so the level is one less the coverage.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from raysweep.bench.record import Figure
from raysweep.bench.statistics import goals
from raysweep.bench.statistics.population import Design
from raysweep.bench.statistics.simulation import Outcomes, Simulation
from raysweep.report.association import Estimate, beside, coefficient, indicators, smooth, strata
from raysweep.report.matching import by_pairs, equal

#: Sizes, seeds of each and checkpoints.  Every second run has the other algorithm.
DESIGNS = {"3 sizes × 2": Design(3, 2, 4), "5 sizes × 2": Design(5, 2, 4), "3 sizes × 4": Design(3, 4, 6)}
#: What a sweep sets.
TREATMENTS = ("longer", "larger", "algorithm")
#: The true effect: of a doubling, or between the algorithms, in units of the noise of a checkpoint.
EFFECT = 0.5
#: Difference of log losses up to which they count as equal.
NEAR = 0.1
#: Fall of the log loss with each doubling of size, and its standard deviation at a checkpoint.
OF_SIZE, SPREAD = 0.7, 0.2


def treatment_simulations() -> list[Simulation]:
    """Return a simulation for each design."""
    return [
        Simulation(
            key=name,
            work=f"effects of steps, size and algorithm: {design.configurations} sizes with {design.seeds} "
            "seeds",
            sample=partial(_sample, design),
            figures=_figures,
            replicates=goals.MANY,
            cost=0.14 * len(design.run),
        )
        for name, design in DESIGNS.items()
    ]


def _sample(design: Design, size: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for what in TREATMENTS:
        for way, estimate in estimates(what, design, size, EFFECT, generator).items():
            found |= goals.kept(f"{what}, {way}", estimate)
    return found


def _figures(outcomes: Outcomes) -> list[Figure]:
    figures = []
    for name in (name.removesuffix(": p") for name in outcomes if name.endswith(": p")):
        what, way = name.split(", ")
        figures += goals.coverage(f"{what}: coverage, {way}", outcomes, name, EFFECT)
        figures.append(goals.share(f"{what}: power, {way}", goals.rejected(outcomes, name)))
        _, known = goals.covered(outcomes, name, EFFECT)
        figures.append(goals.share(f"{what}: without an interval, {way}", ~known))
    return figures


def estimates(
    what: str, design: Design, replicates: int, effect: float, generator: np.random.Generator
) -> dict[str, Estimate]:
    """Return an effect by each way to hold the loss, as the report has it; the true one is `effect`."""
    x, groups = treatment(what, design)
    log_loss, y = drawn(x, design, replicates, effect, generator)
    pairs = equal(log_loss, np.zeros((len(x), len(x))), NEAR)
    pairs = pairs & (groups[:, None] == groups[None, :]) & (x[:, None] != x[None, :])
    every, designs = np.broadcast_to(x, y.shape), (smooth(_place(log_loss)), strata(log_loss))
    held, stratified = (coefficient(every, y, beside(by, indicators(groups)), design.run) for by in designs)
    return {
        "smooth": held,
        "strata": stratified,
        "pairs": by_pairs(every, y, pairs, design.run, correlation=False),
    }


def smoothly(
    what: str, design: Design, replicates: int, effect: float | np.ndarray, generator: np.random.Generator
) -> Estimate:
    """Return an effect by the way that is judged; the true one is `effect`, or `effect` [replicates]."""
    x, groups = treatment(what, design)
    log_loss, y = drawn(x, design, replicates, effect, generator)
    held = beside(smooth(_place(log_loss)), indicators(groups))
    return coefficient(np.broadcast_to(x, y.shape), y, held, design.run)


def drawn(
    x: np.ndarray,
    design: Design,
    replicates: int,
    effect: float | np.ndarray,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Return log losses and accuracies [replicates, n], with an effect of x [n]."""
    run, shape = design.run, (replicates, len(design.run))
    log_loss = -2 * (1 - np.exp(-design.step)) - OF_SIZE * design.configuration
    log_loss = log_loss + SPREAD * generator.standard_normal(shape)
    noise = generator.standard_normal((replicates, design.runs))[:, run] + generator.standard_normal(shape)
    return log_loss, -log_loss + 0.2 * log_loss**2 + np.reshape(effect, (-1, 1)) * x + noise


def _place(log_loss: np.ndarray) -> np.ndarray:
    place = log_loss - log_loss.mean(axis=-1, keepdims=True)
    found: np.ndarray = place / place.std(axis=-1, keepdims=True)
    return found


def treatment(what: str, design: Design) -> tuple[np.ndarray, np.ndarray]:
    """Return the values [n] of what a sweep sets, and the groups [n] in which they are compared."""
    run, size = design.run, design.configuration
    match what:
        case "longer":
            return design.step.astype(float), run
        case "larger":
            return size.astype(float), np.zeros_like(run)
    return (run % 2).astype(float), size
