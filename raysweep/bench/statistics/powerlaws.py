"""Coverage of the intervals of power laws: exponents, floors, extrapolations and steps of equal loss.

Size c of N_c = 2^c parameters has the median loss

    L_c(S) = 0.05 N_c^−α e^{C_c} (f + (1 − f) (S / S_last)^−β) (1 + 3 e^{−S / 120})

with effects C_c of sizes (standard deviation 0.1) and a transient that the analysis is to leave out.  The log
loss of a run deviates from it by a constant (0.05), a slope over the log step (0.03) and noise of each
checkpoint (0.01, standard deviations).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd

from raysweep.bench.record import Figure
from raysweep.bench.statistics import goals
from raysweep.bench.statistics.simulation import Outcomes, Simulation
from raysweep.evaluation.excess_loss import EXCESS_LOSS
from raysweep.evaluation.metric import Description
from raysweep.report.law_fit import FAR, Meeting
from raysweep.report.laws import Asked, Found, law_of
from raysweep.report.regression import Array

#: Standard deviations of a size, and of a run's constant, slope and noise.
OF_SIZE, OF_RUN = 0.1, (0.05, 0.03, 0.01)
#: The exponent over parameters, and the multiple of the last milestone of an extrapolation.
ALPHA, BEYOND = 0.5, 4.0
#: Sweeps of a full record: a law takes a tenth of a second.
SWEEPS = 1500
#: What intervals are of, with their goals.
HELD = {
    "over steps": goals.COVERAGE,
    "floor": goals.COVERAGE,
    "floor of zero": goals.AT_AN_END,
    "loss at 4 times the steps": goals.COVERAGE,
    "equal loss": goals.COVERAGE,
    "equal loss, never or before": goals.BEYOND_AN_END,
    "over parameters": goals.COVERAGE,
}
_LOSS = Description(**EXCESS_LOSS.model_dump())


@dataclass(frozen=True)
class Design:
    """Sizes with seeds, milestones, the exponent over steps, and the floor's share of the last loss."""

    sizes: int
    seeds: int
    steps: tuple[int, ...]
    beta: float
    floor: float


_DOUBLING, _EVEN = tuple(125 * 2**k for k in range(8)), tuple(range(500, 4001, 500))
DESIGNS = {
    "law, 2 sizes × 3": Design(2, 3, _DOUBLING, 0.8, 0.6),
    "law, 3 sizes × 2": Design(3, 2, _DOUBLING, 0.8, 0.6),
    "law, 3 sizes × 4": Design(3, 4, _EVEN, 0.5, 0.2),
    "law, 6 sizes × 2": Design(6, 2, _EVEN, 0.8, 0.6),
    "law, floor above": Design(4, 3, _EVEN, 1.0, 0.85),
    "law, no floor": Design(3, 3, _DOUBLING, 0.8, 0.0),
}


def powerlaw_simulations() -> list[Simulation]:
    """Return a simulation for each design."""
    return [
        Simulation(
            key=name,
            work=f"power laws of {design.sizes} sizes with {design.seeds} seeds, {len(design.steps)} "
            "milestones",
            sample=partial(_sample, design),
            figures=_figures,
            replicates=SWEEPS,
            cost=75.0,
            part=50,
        )
        for name, design in DESIGNS.items()
    ]


def _sample(design: Design, size: int, generator: np.random.Generator) -> dict[str, Array]:
    """Return whether there is a law, and which intervals hold the truth; nan where there is none."""
    rows = []
    for _ in range(size):
        table, scale = drawn(design, generator)
        found = law_of(Asked(metric=_LOSS, title="loss", variant="", table=table))
        held = {} if found.fit is None else _held(design, found, scale)
        rows.append({"law": found.fit is not None, **held})
    return {name: np.array([row.get(name, np.nan) for row in rows], dtype=float) for name in ("law", *HELD)}


def _figures(outcomes: Outcomes) -> list[Figure]:
    figures = []
    for name, goal in HELD.items():
        known = ~np.isnan(outcomes[name])
        if known.any():
            figures.append(goals.share(f"coverage, {name}", outcomes[name][known], goal))
    return [*figures, goals.share("without a law", 1 - outcomes["law"])]


def drawn(design: Design, generator: np.random.Generator) -> tuple[pd.DataFrame, Array]:
    """Return the table of a made-up sweep, and the true loss of each size at the last milestone."""
    steps = np.array(design.steps, dtype=float)
    away = np.log(steps / steps[-1])
    parameters = 2.0 ** np.arange(design.sizes)
    scale = 0.05 * parameters**-ALPHA * np.exp(OF_SIZE * generator.standard_normal(design.sizes))
    law = scale[:, None] * (design.floor + (1 - design.floor) * np.exp(-design.beta * away))
    logs = np.log(law * (1 + 3 * np.exp(-steps / 120)))[:, None]
    shape = design.sizes, design.seeds
    constant, slope = generator.standard_normal((2, *shape, 1))
    noise = generator.standard_normal((*shape, len(steps)))
    logs = logs + OF_RUN[0] * constant + OF_RUN[1] * slope * away + OF_RUN[2] * noise
    rows = [
        {"run_id": f"{c}-{r}", "model": str(c), "parameters": parameters[c], "step": s, "value": value}
        for c in range(design.sizes)
        for r in range(design.seeds)
        for s, value in zip(design.steps, np.exp(logs[c, r]), strict=True)
    ]
    return pd.DataFrame(rows), scale


def _held(design: Design, found: Found, scale: Array) -> dict[str, bool]:
    """Return which intervals hold the truth; that of floors, extrapolation and equal loss for size 0."""
    fit = found.fit
    assert fit is not None
    last, floor = float(design.steps[-1]), design.floor * scale[0]
    _, low, high = fit.exponent
    held = {"over steps": low <= design.beta <= high}
    low, high = (float(ends[0]) for ends in fit.floors()[1:])
    held["floor" if floor else "floor of zero"] = low <= floor <= high
    there = np.array([np.log(BEYOND * last)])
    low, high = (float(ends[0]) for ends in fit.at(0, there))
    held["loss at 4 times the steps"] = low <= floor + (scale[0] - floor) * BEYOND**-design.beta <= high
    held |= _meets(design, fit.equal(0, 1), found.start, scale)
    pure = found.over_size
    if pure is not None and not np.isnan(pure.low):
        held["over parameters"] = bool(pure.low <= -ALPHA <= pure.high)
    return held


def _meets(design: Design, meeting: Meeting, start: float, scale: Array) -> dict[str, bool]:
    """Return whether an interval holds the true step of equal loss, by the kind of truth.

    An interval tells the steps from `start` up to `FAR` times the last milestone apart, and says of a truth
    beyond that it is never, or that it is before.
    """
    gap, last = scale[1] - design.floor * scale[0], float(design.steps[-1])
    truth = last * ((1 - design.floor) * scale[0] / gap) ** (1 / design.beta) if gap > 0 else np.inf
    if start < truth <= FAR * last:
        return {"equal loss": bool(meeting.low <= truth <= meeting.high)}
    # The first step is the first milestone itself, as far as logarithms are exact.
    held = meeting.high == np.inf if truth > start else meeting.low <= start * 1.0001
    return {"equal loss, never or before": bool(held)}
