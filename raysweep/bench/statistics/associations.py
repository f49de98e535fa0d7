"""Coverage, level and power of rank correlations at equal loss, by design, way and part."""

from __future__ import annotations

from functools import partial

import numpy as np

from raysweep.bench.record import Figure
from raysweep.bench.statistics import goals
from raysweep.bench.statistics.population import Design, Drawn, draw
from raysweep.bench.statistics.simulation import Outcomes, Simulation
from raysweep.report.association import LEVELS, Estimate, at_level, correlation, ranks, smooth
from raysweep.report.matching import by_pairs, equal
from raysweep.report.regression import residuals

#: The designs by name: independent runs, and configurations with seeds.
DESIGNS = {
    "6 runs": Design(6, 1, 4),
    "10 runs": Design(10, 1, 4),
    "20 runs": Design(20, 1, 8),
    "3 × 2 seeds": Design(3, 2, 4),
    "5 × 2 seeds": Design(5, 2, 4),
    "10 × 2 seeds": Design(10, 2, 4),
    "4 × 4 seeds": Design(4, 4, 8),
}
#: Correlation of the parts of flatness and accuracy where there is an effect.
RHO = -0.7
#: Difference of log losses up to which they count as equal.
NEAR = 0.1
#: Configurations of the sample that stands for the population.
MANY = 4000


def association_simulations() -> list[Simulation]:
    """Return a simulation for each design, with an effect and without."""
    return [
        Simulation(
            key=name,
            work=f"{design.runs} runs of {design.configurations} configurations, "
            f"{design.checkpoints} checkpoints",
            sample=partial(_sample, design),
            figures=partial(_figures, design),
            replicates=goals.MANY,
            cost=0.12 * len(design.run),
        )
        for name, design in DESIGNS.items()
    ]


def _sample(design: Design, size: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for rho in (0.0, RHO):
        for way, estimate in _estimates(draw(design, size, rho, generator), design).items():
            found |= goals.kept(f"{way}, {rho}", estimate)
    return found


def _figures(design: Design, outcomes: Outcomes) -> list[Figure]:
    many = Design(MANY, design.seeds, design.checkpoints)
    truth = true_correlation(many, np.random.default_rng(len(design.run)))
    ways = [name.removesuffix(", 0.0: p") for name in outcomes if name.endswith(", 0.0: p")]
    figures = [
        goals.share(f"level, {way}", goals.rejected(outcomes, f"{way}, 0.0"), goals.LEVEL) for way in ways
    ]
    for way in ("smooth", "strata", "pairs"):
        without = f"without an interval, {way}"
        figures += goals.coverage(f"coverage, {way}", outcomes, f"{way}, {RHO}", truth, without=without)
    figures += [goals.share(f"power, {way}", goals.rejected(outcomes, f"{way}, {RHO}")) for way in ways]
    return [*figures, Figure(name="true ρ", unit="", value=truth)]


def true_correlation(many: Design, generator: np.random.Generator, rho: float = RHO) -> float:
    """Return the correlation at equal loss in a sample so large that it stands for the population."""
    drawn = draw(many, 1, rho, generator)
    design = smooth(ranks(drawn.log_loss))
    x, y = (residuals(ranks(values), design)[0] for values in (drawn.x, drawn.y))
    return float(np.corrcoef(x, y)[0, 1])


def _estimates(drawn: Drawn, design: Design) -> dict[str, Estimate]:
    """Return all estimates that the report makes of a correlation, by name."""
    run, configuration = design.run, design.configuration
    columns = drawn.x, drawn.y, drawn.log_loss, run, configuration
    n = drawn.x.shape[-1]
    own_x, own_y = (ranks(values) for values in drawn.own)
    pairs = equal(drawn.log_loss, np.zeros((n, n)), NEAR)
    found = {
        "smooth": at_level(*columns, "all"),
        "strata": at_level(*columns, "all", way="strata"),
        "pairs": by_pairs(drawn.x, drawn.y, pairs, configuration, correlation=True),
        "without a loss": correlation(own_x, own_y, np.ones((*own_x.shape, 1)), configuration),
    }
    for level in LEVELS:
        if level != "all" and not (level == "seeds" and design.seeds == 1):
            found[f"part: {level}"] = at_level(*columns, level)
    return found
