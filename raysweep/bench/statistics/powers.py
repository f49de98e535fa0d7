"""Power as the report states it: does a new sweep see the effect that its pilot has named in 80 %?

A pilot is a made-up sweep without an effect.  It names the effect that its design sees with 80 %, and a new
sweep of the same design has that effect.  Or it names the number of runs that an effect takes, and a new
sweep has this effect and, in the mean over many, so many runs: chance decides whether it has the whole seeds
of each size that are next above or next below.  (With those above, it would have up to a seed of each size
more than was named.)  That effect is two standard deviations of the estimates, so it takes some two to three
times the runs of the pilot.  Each pilot has a new sweep of its own, so the shares are those of readers who
plan by what the report states.

A pilot that names a correlation beyond those that a sweep can be made up with names no number, nor does one
without an interval.  Where they are many, the others are those whose errors are small by chance: they name
effects that are too small, and the share that they would have has no goal.
"""

from __future__ import annotations

import math
from functools import cache, partial

import numpy as np

from raysweep.bench.record import Figure
from raysweep.bench.statistics import associations, goals
from raysweep.bench.statistics.population import Design, draw
from raysweep.bench.statistics.simulation import Outcomes, Simulation
from raysweep.bench.statistics.treatments import TREATMENTS, smoothly
from raysweep.report.association import Estimate, at_level
from raysweep.report.power import Pilot
from raysweep.report.reference import by_seeds
from raysweep.report.verdict import ALPHA

#: Designs by name.
DESIGNS = {
    "power, 3 × 2": Design(3, 2, 4),
    "power, 5 × 2": Design(5, 2, 4),
    "power, 10 × 2": Design(10, 2, 4),
}
#: The effect, in standard deviations of estimates, that a pilot names a number of runs for; and the most
#: times as many runs as the pilot has that a new sweep is made up of.
SMALL, MOST_TIMES = 2.0, 12
#: Pilots of a full record: the standard error of a power of 80 % is 0.9 %.
PILOTS = 2000
#: The share of pilots without a number from which on the others are too few of a kind for a goal.
MOST_WITHOUT = 1 / 3
#: Correlations of the parts between which that of a new sweep is interpolated, and the largest one.
_GRID = np.linspace(0.0, 0.98, 15)


def power_simulations() -> list[Simulation]:
    """Return a simulation for each design."""
    return [
        Simulation(
            key=name,
            work=f"power as it is stated: {design.configurations} sizes with {design.seeds} seeds",
            sample=partial(_sample, design),
            figures=_figures,
            replicates=PILOTS,
            cost=75.0,
            part=125,
        )
        for name, design in DESIGNS.items()
    ]


def _figures(outcomes: Outcomes) -> list[Figure]:
    figures = []
    for name, seen in outcomes.items():
        known = seen[~np.isnan(seen)]
        if len(known):
            goal = goals.STATED_POWER if np.isnan(seen).mean() < MOST_WITHOUT else None
            figures.append(goals.share(f"stated 80 %: {name}", known, goal))
        if len(known) < len(seen):
            figures.append(goals.share(f"stated 80 %: {name}: without a number", np.isnan(seen)))
    return figures


def _sample(design: Design, size: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Return whether new sweeps see the effects that their pilots name; nan where a pilot names none."""
    found = {}
    for what in TREATMENTS:
        pilots = smoothly(what, design, size, 0.0, generator)
        effects = named(pilots)
        later = smoothly(what, design, size, np.nan_to_num(effects), generator)
        found[what] = _seen(later, effects)
    found["larger, in so many runs"] = _in_runs(design, size, generator)
    drawn = draw(design, size, 0.0, generator)
    columns = design.run, design.configuration
    effects = np.tanh(named(at_level(drawn.x, drawn.y, drawn.log_loss, *columns, "all")))
    truth, most = _truths(design), float(_truths(design).max())
    rho = np.interp(np.nan_to_num(effects), truth, _GRID)[:, None]
    drawn = draw(design, size, rho, generator)
    later = at_level(drawn.x, drawn.y, drawn.log_loss, *columns, "all")
    found["flatter"] = _seen(later, np.where(effects <= most, effects, np.nan))
    pilot, new = (_beside_table(design.runs, size, generator) for _ in range(2))
    effects = named(by_seeds(pilot))
    found["beats"] = _seen(by_seeds(new + effects[:, None, None]), effects)
    return found


def named(pilots: Estimate) -> np.ndarray:
    """Return the effect [n] that each pilot says is seen with 80 %, on the scale of its test."""
    every = _pilots(pilots)
    return np.array([math.nan if pilot is None else pilot.detectable() for pilot in every])


def _pilots(found: Estimate) -> list[Pilot | None]:
    return [
        None if math.isnan(p) else Pilot(float(error), found.ratio.one(k), found.clusters)
        for k, (p, error) in enumerate(zip(found.p, found.standard_error, strict=True))
    ]


def _in_runs(design: Design, size: int, generator: np.random.Generator) -> np.ndarray:
    """Return which new sweeps with as many runs as their pilots ask for see the effect of size."""
    found = smoothly("larger", design, size, 0.0, generator)
    effect = SMALL * float(np.nanstd(found.value))
    runs = [None if pilot is None else pilot.needed(effect) for pilot in _pilots(found)]
    named_seeds = np.array([0.0 if count is None else count / design.configurations for count in runs])
    seeds = np.floor(named_seeds + generator.random(size))
    seen = np.full(size, np.nan)
    for count in np.unique(seeds[(seeds > 0) & (seeds <= MOST_TIMES * design.seeds)]):
        later = Design(design.configurations, int(count), design.checkpoints)
        chosen = np.flatnonzero(seeds == count)
        seen[chosen] = _seen(smoothly("larger", later, len(chosen), effect, generator), effect)
    return seen


def _seen(later: Estimate, effects: np.ndarray | float) -> np.ndarray:
    return np.where(np.isnan(effects), np.nan, later.p <= ALPHA)


def _beside_table(runs: int, size: int, generator: np.random.Generator) -> np.ndarray:
    """Return accuracies of runs less those of the table [size, runs, seeds], without an effect."""
    normal = generator.standard_normal
    return normal((size, runs, 1)) + normal((size, 1, 5)) + normal((size, runs, 5))


@cache
def _truths(design: Design) -> np.ndarray:
    """Return the correlation at equal loss for each of `_GRID`."""
    many = Design(associations.MANY, design.seeds, design.checkpoints)
    return np.array(
        [associations.true_correlation(many, np.random.default_rng(0), float(rho)) for rho in _GRID]
    )
