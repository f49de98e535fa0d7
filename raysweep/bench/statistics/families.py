"""Errors among all claims of a sweep: how often at least one is found where none is true.

Every run has a configuration (its size), a seed, and every second one the other algorithm.  With t the log
loss, accuracy on task k at checkpoint i and flatness are

    y_ik = −t + 0.2 t² + R_rk + E_ik,        x_i = t + R'_r + E'_i

with R and E of variance one, correlated by a half between tasks, and apart from x: at equal loss flatness,
steps, size and algorithm have no effect.  The look-up table is as good as the last checkpoints are in the
mean.  All claims are judged together, as the report does (Holm).
"""

from __future__ import annotations

from functools import partial

import numpy as np

from raysweep.bench.record import Figure
from raysweep.bench.statistics import goals
from raysweep.bench.statistics.population import Design
from raysweep.bench.statistics.references import OF_SEED, SEEDS
from raysweep.bench.statistics.simulation import Outcomes, Simulation
from raysweep.report.association import at_level, beside, coefficient, indicators, smooth
from raysweep.report.reference import by_seeds
from raysweep.report.statistics import holm
from raysweep.report.verdict import ALPHA

#: Sizes, seeds of each and checkpoints.
DESIGNS = {
    "family, 3 × 2": Design(3, 2, 4),
    "family, 6 × 2": Design(6, 2, 8),
    "family, 10 × 2": Design(10, 2, 4),
}
#: Numbers of tasks; each has five claims.
TASKS = (1, 3)
#: Standard deviation of the log loss at a checkpoint, and its fall with each doubling of size.
SPREAD, OF_SIZE = 0.2, 0.3


def family_simulations() -> list[Simulation]:
    """Return a simulation for each design."""
    return [
        Simulation(
            key=name,
            work=f"all claims of a sweep, none true: {design.configurations} sizes with {design.seeds} seeds",
            sample=partial(_sample, design),
            figures=_figures,
            replicates=goals.MANY,
            cost=0.13 * len(design.run),
        )
        for name, design in DESIGNS.items()
    ]


def _sample(design: Design, size: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    return {"p": p_values(design, size, max(TASKS), generator)}


def _figures(outcomes: Outcomes) -> list[Figure]:
    p, figures = outcomes["p"], []
    for tasks in TASKS:
        claims = p[:, :, :tasks].reshape(len(p), -1)
        known = [row[~np.isnan(row)] for row in claims]
        alone = np.array([bool((row <= ALPHA).any()) for row in known])
        together = np.array([min(holm(row.tolist()), default=1.0) <= ALPHA for row in known])
        said = f"{claims.shape[1]} claims"
        figures.append(goals.share(f"any error, {said}", together, goals.LEVEL))
        figures.append(goals.share(f"any error uncorrected, {said}", alone))
    return figures


def p_values(design: Design, replicates: int, tasks: int, generator: np.random.Generator) -> np.ndarray:
    """Return the p-values [replicates, 5, tasks] of all claims; nan where there is no test."""
    run, size = design.run, design.configuration
    normal, n = generator.standard_normal, len(design.run)
    log_loss = -2 * (1 - np.exp(-design.step)) - OF_SIZE * size + SPREAD * normal((replicates, n))
    x = log_loss + normal((replicates, design.runs))[:, run] + normal((replicates, n))
    shared = normal((replicates, design.runs))[:, run] + normal((replicates, n))
    place = log_loss - log_loss.mean(axis=-1, keepdims=True)
    held = smooth(place / place.std(axis=-1, keepdims=True))
    treatments = [
        (design.step.astype(float), run),
        (size.astype(float), np.zeros_like(run)),
        ((run % 2).astype(float), size),
    ]
    found = []
    for _ in range(tasks):
        own = normal((replicates, design.runs))[:, run] + normal((replicates, n))
        noise = np.sqrt(0.5) * (shared + own)
        y = -log_loss + 0.2 * log_loss**2 + noise
        p = [at_level(x, y, log_loss, run, size, "all").p]
        for treatment, groups in treatments:
            every = np.broadcast_to(treatment, y.shape)
            p.append(coefficient(every, y, beside(held, indicators(groups)), run).p)
        last = design.step == design.checkpoints - 1
        probed = noise[:, last, None] + normal((replicates, design.runs, SEEDS))
        seeds = OF_SEED * normal((replicates, 1, SEEDS))
        table = seeds + normal((replicates, 1, SEEDS))
        p.append(by_seeds(probed + seeds - table).p)
        found.append(np.stack(p, axis=-1))
    return np.stack(found, axis=-1)
