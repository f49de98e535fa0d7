"""Goals of a simulation, and what is counted for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from raysweep.bench.record import Goal
from raysweep.report.association import Estimate
from raysweep.report.verdict import ALPHA

LEVEL = Goal(sense="at most", value=ALPHA)
COVERAGE = Goal(sense="within", value=0.93, upto=0.97)

#: Sweeps that are drawn at once.
BATCH = 250


def batches(replicates: int) -> Iterator[int]:
    """Yield the sizes of the batches of so many replicates."""
    for start in range(0, replicates, BATCH):
        yield min(BATCH, replicates - start)


def rejected(estimates: Sequence[Estimate]) -> float:
    """Return the share of all replicates that a test rejects; one without an interval is not rejected."""
    p = np.concatenate([np.atleast_1d(estimate.p) for estimate in estimates])
    return float((p <= ALPHA).mean())


def covered(estimates: Sequence[Estimate], truth: float) -> tuple[float, float]:
    """Return the share of intervals that hold the truth, and the share of replicates with an interval."""
    low, high = (
        np.concatenate([np.atleast_1d(getattr(estimate, end)) for estimate in estimates])
        for end in ("low", "high")
    )
    known = ~np.isnan(low)
    inside = (low <= truth) & (truth <= high)
    return float(inside[known].mean()) if known.any() else 0.0, float(known.mean())
