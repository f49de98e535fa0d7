"""Coverage, level and power of rank correlations at equal loss, by design, way and part."""

from __future__ import annotations

import numpy as np

from raysweep.bench.record import CaseRecord, Figure
from raysweep.bench.statistics.goals import COVERAGE, LEVEL, batches, covered, rejected
from raysweep.bench.statistics.population import Design, Drawn, draw
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


def association_cases(*, replicates: int, seed: int) -> list[CaseRecord]:
    """Return a case for each design."""
    return [_case(name, design, replicates, seed + k) for k, (name, design) in enumerate(DESIGNS.items())]


def _case(name: str, design: Design, replicates: int, seed: int) -> CaseRecord:
    generator = np.random.default_rng(seed)
    truth = true_correlation(Design(MANY, design.seeds, design.checkpoints), generator)
    by_effect: dict[float, dict[str, list[Estimate]]] = {0.0: {}, RHO: {}}
    for rho, found in by_effect.items():
        for size in batches(replicates):
            for way, estimate in _estimates(draw(design, size, rho, generator), design).items():
                found.setdefault(way, []).append(estimate)
    figures = []
    for way, estimates in by_effect[0.0].items():
        figures.append(Figure(name=f"level, {way}", unit="", value=rejected(estimates), goal=LEVEL))
    for way in ("smooth", "strata", "pairs"):
        share, known = covered(by_effect[RHO][way], truth)
        if known > 0:
            figures.append(Figure(name=f"coverage, {way}", unit="", value=share, goal=COVERAGE))
        figures.append(Figure(name=f"without an interval, {way}", unit="", value=1 - known))
    figures += [
        Figure(name=f"power, {way}", unit="", value=rejected(estimates))
        for way, estimates in by_effect[RHO].items()
    ]
    figures.append(Figure(name="true ρ", unit="", value=truth))
    figures.append(Figure(name="replicates", unit="", value=float(replicates)))
    work = f"{design.runs} runs of {design.configurations} configurations, {design.checkpoints} checkpoints"
    return CaseRecord(key=name, work=work, unit="sweep", figures=tuple(figures))


def true_correlation(many: Design, generator: np.random.Generator) -> float:
    """Return the correlation at equal loss in a sample so large that it stands for the population."""
    drawn = draw(many, 1, RHO, generator)
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
