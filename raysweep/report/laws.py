"""Power laws of a sweep: of its excess loss, its flatness and its distance from the best accuracy.

`raysweep.report.powerlaw` has the law.  It holds after an initial transient alone, so a fit begins at a
quarter of the last milestone, or at an eighth where a quarter leaves too few milestones.  If from there the
law is not within `TOLERANCE` of the means over seeds, apart from what the scatter of single checkpoints
explains, or its exponent drifts, the fit begins at half of the last milestone.  Some exponents drift by
chance, and intervals from the later milestones of these alone would not hold.  So where the exponent drifts,
intervals reach over those of the earlier fit (`Fit.earlier`).  Each variant of a sweep has laws of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from raysweep.evaluation.metric import Description
from raysweep.report.association import Estimate, coefficient
from raysweep.report.columns import loss_of, numbers
from raysweep.report.data import Measurements
from raysweep.report.law_fit import Fit
from raysweep.report.powerlaw import EXPONENTS, Curves
from raysweep.report.regression import Array

#: Fewest milestones of a run, and fewest sizes: a curve of three numbers is checked by a fourth point.
LEAST_MILESTONES, LEAST_SIZES = 4, 2
#: Root mean square of log L less the means, from which a law does not hold.
TOLERANCE = 0.01
#: Shares of the last milestone from which a law may hold; the first one where the second leaves too little.
SHARES = (1 / 8, 1 / 4, 1 / 2)
#: Most times that the upper end of the interval of an exponent is the lower one, if it is determined at all;
#: and how near to an end of the range that is searched an exponent may lie, as a factor.
DETERMINED, EDGE = 10.0, 1.2


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A quantity that a law is asked for: values of the runs of one variant, from all their milestones.

    `title` is what the page calls it.  `table` has the columns run_id, model, parameters, step and value.
    `pure` says that it vanishes with more parameters, as far as is known, so that a power of their number
    stands alone.
    """

    metric: Description
    title: str
    variant: str
    table: pd.DataFrame
    pure: bool = True


@dataclass(frozen=True, kw_only=True)
class Found:
    """The law of a quantity: `fit` of the sizes in `sizes`, from the step `start` on; None for the `reason`.

    `over_size` is minus the exponent over parameters at `step`, the last that all sizes have.
    """

    asked: Asked
    fit: Fit | None = None
    sizes: Sequence[str] = field(default_factory=tuple)
    start: int = 0
    misfit: float = np.nan
    over_size: Estimate | None = None
    step: int | None = None
    reason: str = ""


def laws(measured: Measurements) -> list[Found]:
    """Return the laws of a sweep with several sizes: by variant the loss, flatness, then accuracies."""
    if len(measured.sizes) < LEAST_SIZES:
        return []
    return [law_of(asked) for variant in measured.variants for asked in _quantities(measured, variant)]


def _quantities(measured: Measurements, variant: str) -> list[Asked]:
    found = []
    loss = loss_of(measured)
    shown = [*([loss] if loss else []), *measured.comparable(), *measured.shown("accuracy")]
    for metric in shown:
        table = measured.has(metric.name)
        table = table[(table["variant"] == variant) & (table["step"] > 0)]
        values, title, pure = table[metric.name], metric.title, True
        if metric.kind == "accuracy":
            best = measured.means.get(metric.ceiling or "")
            of = "the best possible one" if best is not None else "1"
            values, title = (1.0 if best is None else best) - values, f"{title}: distance from {of}"
        elif metric.kind == "loss":
            values, pure = values - (metric.least or 0.0), metric.least is not None
        columns = ["run_id", "model", "parameters", "step"]
        found.append(
            Asked(
                metric=metric,
                title=title,
                variant=variant,
                table=table[columns].assign(value=values),
                pure=pure,
            )
        )
    return found


def law_of(asked: Asked) -> Found:
    """Return the law of a quantity, or why it has none."""
    table = asked.table.sort_values(["parameters", "model", "run_id", "step"], kind="stable")
    if (table["value"] <= 0).any():
        return Found(asked=asked, reason="not all values are positive")
    if table.groupby("model")["parameters"].first().duplicated().any():
        return Found(asked=asked, reason="models of one size differ in something else, such as dropout")
    # Without enough milestones the first candidate says so.
    misfit, limit, drifts = np.nan, np.nan, False
    earlier: Fit | None = None
    for start in _candidates(table["step"]):
        curves, sizes = arranged(table[table["step"] >= start])
        if curves is None:
            break
        fit = Fit(curves, earlier=earlier)
        misfit, limit = off(fit), allowed(curves)
        holds = misfit <= limit
        if holds and _flat(curves):
            return Found(asked=asked, reason="the values hardly change, so that no exponent is determined")
        drifts = holds and fit.sure and fit.drifts()
        if holds and not drifts:
            if reason := _undetermined(fit):
                return Found(asked=asked, reason=reason)
            over_size, step = _over_size(table, sizes) if asked.pure else (None, None)
            return Found(
                asked=asked,
                fit=fit,
                sizes=sizes,
                start=int(start),
                misfit=misfit,
                over_size=over_size,
                step=step,
            )
        if holds:
            earlier = fit
    if np.isnan(misfit):
        need = f"it takes {LEAST_MILESTONES} milestones at each of {LEAST_SIZES} sizes"
        return Found(asked=asked, reason=f"not enough data: {need}")
    why = "its exponent drifts"
    if not drifts:
        why = f"it is off by {100 * misfit:.1f} %, where the scatter of its runs allows {100 * limit:.1f} %"
    reason = f"no power law: from the last possible milestone on {why}"
    return Found(asked=asked, misfit=misfit, reason=reason)


def _flat(curves: Curves) -> bool:
    """Return whether no size falls by more than a law may be off."""
    ends = (means[known][[0, -1]] for means, known in zip(curves.means, curves.known, strict=True))
    return max(first - last for first, last in ends) <= 2 * allowed(curves)


def _undetermined(fit: Fit) -> str:
    """Return why the exponent of a law is not determined, "" where it is."""
    exponent, low, high = fit.exponent
    if not EXPONENTS[0] * EDGE < exponent < EXPONENTS[1] / EDGE:
        return f"the exponent is not determined: its best value is at an end of {list(EXPONENTS)}"
    # Runs that differ in their level alone give an interval without a width: 1 % is left to the search.
    inside = low <= 1.01 * exponent and exponent <= 1.01 * high
    if fit.sure and not (inside and high <= DETERMINED * low):
        return "the exponent is not determined by these runs"
    return ""


def _candidates(steps: pd.Series) -> list[int]:
    """Return the milestones from which a law may be fitted, in ascending order."""
    if not len(steps):
        return []
    starts = [int(steps[steps >= steps.max() * share].min()) for share in SHARES]
    enough = steps[steps >= starts[1]].nunique() >= LEAST_MILESTONES
    return sorted(set(starts[1:] if enough else starts))


def arranged(table: pd.DataFrame) -> tuple[Curves | None, list[str]]:
    """Return the curves of the sizes of a table, and these sizes; None where there are too few.

    A run counts with enough milestones, and a size at those that all such runs of it have.
    """
    steps, logs, sizes = [], [], []
    for size, part in table.groupby("model", sort=False):
        wide = part.pivot(index="run_id", columns="step", values="value")
        wide = wide[wide.notna().sum(axis=1) >= LEAST_MILESTONES].dropna(axis=1)
        if len(wide) and len(wide.columns) >= LEAST_MILESTONES:
            sizes.append(str(size))
            steps.append(wide.columns.to_numpy(dtype=float))
            logs.append(np.log(wide.to_numpy(dtype=float)))
    return (Curves.of(steps, logs) if len(sizes) >= LEAST_SIZES else None), sizes


def off(fit: Fit) -> float:
    """Return the root mean square of the misfit of a law."""
    return float(np.sqrt((fit.misfit() ** 2).sum() / fit.curves.known.sum()))


def allowed(curves: Curves) -> float:
    """Return how far off a law may be: the tolerance, and what the scatter of checkpoints makes of the means.

    Scatter is what a line over the logarithm of the step leaves of the deviation of a run from its size.
    """
    owner = np.repeat(np.arange(len(curves.runs)), curves.runs)
    total, dof, of_means = 0.0, 0.0, 0.0
    for size, runs in enumerate(curves.runs):
        x = curves.log_steps[size][curves.known[size]]
        line = np.stack([np.ones(len(x)), x], axis=1)
        deviations = curves.deviations[owner == size, size][:, curves.known[size]]
        left = deviations - deviations @ np.linalg.pinv(line).T @ line.T
        total += float((left**2).sum())
        dof += (runs - 1) * (len(x) - 2)
        of_means += (len(x) - 2) / runs
    scatter = total / dof if dof else 0.0
    return float(np.sqrt(TOLERANCE**2 + 2 * scatter * of_means / curves.known.sum()))


def _over_size(table: pd.DataFrame, sizes: Sequence[str]) -> tuple[Estimate | None, int | None]:
    """Return the slope of the logarithm over that of parameters at the last step of all sizes, and that."""
    part = table[table["model"].isin(sizes)]
    shared = set.intersection(*(set(steps) for _, steps in part.groupby("model")["step"]))
    if not shared or part["parameters"].nunique() < LEAST_SIZES:
        return None, None
    part = part[part["step"] == max(shared)]
    x, y = (np.log(part[name].to_numpy(dtype=float)) for name in ("parameters", "value"))
    design: Array = np.ones((len(x), 1))
    return coefficient(x, y, design, numbers(part["model"])), int(max(shared))
