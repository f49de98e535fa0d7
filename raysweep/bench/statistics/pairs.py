"""Pairs at equal loss, as `raysweep match` lists them: are they equal, and do their intervals hold?

A sweep has checkpoints with true excess losses drawn evenly, and true accuracies.  Sentence s adds to the
loss of checkpoint i, and seed k of the probe to its accuracy,

    l_is = L_i + X_s + 0.3 Y_is,        a_ik = A_i + B_k + E_ik

with exponential X and Y, less their means, and normal B and E: what all checkpoints share falls out of
differences.  Pairs are called equal by the stored draws (`raysweep.report.paired.loss_errors`,
`raysweep.report.matching.equal`); those whose true losses are further apart than twice the tolerance are not.
The most telling pairs are chosen by what was measured, so their single intervals hold less often.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from raysweep.bench.record import Figure, Goal
from raysweep.bench.statistics import goals
from raysweep.bench.statistics.simulation import Outcomes, Simulation
from raysweep.report.match import SHOWN
from raysweep.report.matching import equal
from raysweep.report.paired import Apart, Key, loss_errors

#: Checkpoints, sentences and seeds of the probe.
CHECKPOINTS, SENTENCES, SEEDS = 16, 400, 5
#: Tolerances in units of the standard error of a paired difference of losses: hardly known, and well known.
TOLERANCES = {"pairs, losses hardly known": 1.5, "pairs, losses well known": 6.0}
#: Sweeps of a full record: a sweep has many pairs.
SWEEPS = 1000


def pair_simulations() -> list[Simulation]:
    """Return a simulation for each tolerance."""
    return [
        Simulation(
            key=name,
            work=f"pairs within {tolerance:g} standard errors of a difference, of {CHECKPOINTS} checkpoints",
            sample=partial(_sample, tolerance),
            figures=_figures,
            replicates=SWEEPS,
            cost=5.0,
            part=50,
        )
        for name, tolerance in TOLERANCES.items()
    ]


def _sample(tolerance: float, size: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Return, for each sweep, its numbers of pairs, of those not equal, held, telling, and held of these."""
    found = []
    for _ in range(size):
        apart, held, sure = sweep(tolerance, generator)
        telling = [held[k] for k in np.argsort(sure)[::-1][:SHOWN]]
        unequal = sum(distance > 2 * tolerance for distance in apart)
        found.append((len(apart), unequal, sum(held), len(telling), sum(telling)))
    names = "pairs", "unequal", "held", "telling", "telling held"
    return dict(zip(names, np.array(found, dtype=float).T, strict=True))


def _figures(outcomes: Outcomes) -> list[Figure]:
    total = {name: float(values.sum()) for name, values in outcomes.items()}

    def figure(name: str, of: str, among: str, goal: Goal | None = None) -> Figure:
        return Figure(name=name, unit="", value=total[of] / max(total[among], 1.0), goal=goal)

    return [
        figure("pairs called equal that are not", "unequal", "pairs", goals.LEVEL),
        figure("pairs: coverage, Δ accuracy", "held", "pairs", goals.COVERAGE),
        figure(f"the {SHOWN} most telling: coverage, Δ accuracy", "telling held", "telling"),
        Figure(name="pairs of a sweep", unit="", value=float(outcomes["pairs"].mean())),
    ]


def sweep(tolerance: float, generator: np.random.Generator) -> tuple[list[float], list[bool], list[float]]:
    """Return, for each pair called equal, three things.

    They are the true distance of its losses in standard errors, whether the interval of its difference of
    accuracy holds the truth, and the size of that difference in standard errors.
    """
    unit = 0.3 * np.sqrt(2 / SENTENCES)
    true = generator.uniform(0, 4 * tolerance, size=CHECKPOINTS) * unit
    shared = generator.exponential(size=SENTENCES) - 1
    values = true[:, None] + shared + 0.3 * (generator.exponential(size=(CHECKPOINTS, SENTENCES)) - 1)
    keys: list[Key] = [("run", place) for place in range(CHECKPOINTS)]
    draws = dict(zip(keys, (values - values.mean(axis=1, keepdims=True)) / SENTENCES, strict=True))
    errors, _ = loss_errors(keys, values.std(axis=1) / np.sqrt(SENTENCES), draws)
    pairs = np.argwhere(np.triu(equal(values.mean(axis=1), errors, tolerance * unit)))
    of_accuracy = generator.standard_normal(CHECKPOINTS)
    seeds = of_accuracy[:, None] + generator.standard_normal(SEEDS)
    seeds = seeds + generator.standard_normal((CHECKPOINTS, SEEDS))
    distances, held, sure = [], [], []
    for i, j in pairs:
        apart = Apart.of_draws(seeds[j] - seeds[i])
        low, high = apart.interval
        distances.append(float(abs(true[j] - true[i]) / unit))
        held.append(bool(low <= of_accuracy[j] - of_accuracy[i] <= high))
        sure.append(abs(apart.value) / apart.standard_error)
    return distances, held, sure
