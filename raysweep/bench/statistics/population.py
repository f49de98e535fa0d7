"""Made-up sweeps: runs of configurations, with checkpoints that resemble each other.

With k the step, c the configuration and r the run of checkpoint i, and t its log excess loss,

    x_i = 1.5 t + C_c + R_r + E_i,        y_i = −1.5 t + 1.2 t² + C'_c + R'_r + E'_i

where x stands for the log trace and y for accuracy.  C, R and E have the variances 1, 0.5 and 0.3, and E is
autocorrelated along a run (0.5 from step to step).  Each has the correlation ρ with its partner.  Losses fall
with the step, and differ between configurations (0.5), runs (0.15) and checkpoints (0.05, standard
deviations).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

Array = np.ndarray

#: Variances of configurations, runs and checkpoints.
VARIANCES = (1.0, 0.5, 0.3)
#: Standard deviations of the log loss between them.
OF_LOSS = (0.5, 0.15, 0.05)


@dataclass(frozen=True)
class Design:
    """A number of configurations, seeds of each, and checkpoints of a run."""

    configurations: int
    seeds: int
    checkpoints: int

    @property
    def runs(self) -> int:
        """Number of runs."""
        return self.configurations * self.seeds

    @property
    def run(self) -> Array:
        """The number of the run of each checkpoint [n]."""
        return np.repeat(np.arange(self.runs), self.checkpoints)

    @property
    def configuration(self) -> Array:
        """The number of the configuration of each checkpoint [n]."""
        return self.run // self.seeds

    @property
    def step(self) -> Array:
        """The place of each checkpoint in its run [n], from 0."""
        return np.tile(np.arange(self.checkpoints), self.runs)


@dataclass(frozen=True)
class Drawn:
    """Checkpoints of many sweeps of one design [replicates, n]; `own` are x and y less their part of t."""

    log_loss: Array
    x: Array
    y: Array
    own: tuple[Array, Array]


def draw(design: Design, replicates: int, rho: float | Array, generator: np.random.Generator) -> Drawn:
    """Draw sweeps in which x and y have the correlation `rho` in each of their parts, or [replicates, 1]."""

    def normal(count: int) -> Array:
        return generator.standard_normal((replicates, count))

    def pair(count: int) -> tuple[Array, Array]:
        first = normal(count)
        return first, rho * first + np.sqrt(1 - rho**2) * normal(count)

    configuration, run = design.configuration, design.run
    n = len(run)
    spread = normal(design.configurations)[:, configuration], normal(design.runs)[:, run], normal(n)
    log_loss = -4 * design.step / max(design.checkpoints - 1, 1)
    log_loss = log_loss + sum(size * part for size, part in zip(OF_LOSS, spread, strict=True))
    x_c, y_c = pair(design.configurations)
    x_r, y_r = pair(design.runs)
    x_e, y_e = (_autocorrelated(part, design) for part in pair(n))
    t = (log_loss + 2) / 2
    roots = np.sqrt(VARIANCES)
    own = (
        roots[0] * x_c[:, configuration] + roots[1] * x_r[:, run] + roots[2] * x_e,
        roots[0] * y_c[:, configuration] + roots[1] * y_r[:, run] + roots[2] * y_e,
    )
    return Drawn(log_loss, 1.5 * t + own[0], -1.5 * t + 1.2 * t**2 + own[1], own)


def _autocorrelated(values: Array, design: Design) -> Array:
    """Return normal values [replicates, n] with a correlation of one half between neighbours of a run."""
    shaped = values.reshape(len(values), design.runs, design.checkpoints).copy()
    for place in range(1, design.checkpoints):
        shaped[..., place] = 0.5 * shaped[..., place - 1] + np.sqrt(0.75) * shaped[..., place]
    return shaped.reshape(values.shape)
