"""Claims as estimates: flatness, what a sweep sets, and the look-up table; see `raysweep.report.claims`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from raysweep.evaluation.metric import Description
from raysweep.report.association import (
    LEAST_CLUSTERS,
    LEVELS,
    Estimate,
    adjusted,
    at_level,
    coefficient,
    smooth,
    strata,
)
from raysweep.report.columns import LEAST_CHECKPOINTS, Columns, named, numbers, places
from raysweep.report.data import Measurements
from raysweep.report.matching import by_pairs
from raysweep.report.paired import Draws, Key
from raysweep.report.reference import by_numbers, by_seeds
from raysweep.report.regression import Array
from raysweep.report.style import OTHERS
from raysweep.report.verdict import Adjusted, Asked, Finding
from raysweep.sweep.claims import About, Algorithm, Beats, Flatter, Larger, Longer, is_algorithm

if TYPE_CHECKING:
    import pandas as pd

#: The smallest effects worth mentioning where a claim says nothing: a correlation, a difference of accuracy.
LEAST_RHO, LEAST_ACCURACY = 0.5, 0.01
NOTHING = Finding(name="smooth", value=math.nan, low=math.nan, high=math.nan, p=math.nan)
#: Most variants of a sweep of many runs whose associations are each reported too.
WITHIN = 12
_LEVELS = {
    "configurations": "between configurations",
    "seeds": "between seeds of a configuration",
    "steps": "along the steps of a run",
}


def says(about: About) -> str:
    """Return a claim in words, without its task."""
    match about:
        case Flatter():
            return "at equal loss, flatter goes with better"
        case Longer():
            return "at equal loss, longer training goes with better"
        case Larger():
            return "at equal loss, larger models are better"
        case Algorithm():
            return f"at equal loss, {about.better} is better than {about.than}"
    return "trained models beat the look-up table"


def headed(about: About) -> tuple[str, str]:
    """Return the task with a colon, "" for all tasks, and the claim that follows it."""
    text = says(about)
    return (f"Task {about.task}: ", text) if about.task else ("", text[:1].upper() + text[1:])


def flatter(
    measured: Measurements,
    about: Flatter,
    accuracies: Sequence[Description],
    loss: Description,
    flatness: Description,
    near: float,
    draws: Mapping[Key, Array],
) -> Asked:
    """Return the claim that flatter goes with better."""
    data = Columns(measured, accuracies, loss, flatness)
    x = data.table[flatness.name].to_numpy(dtype=float)
    head, text = headed(about)
    by_seed = about.level == "seeds"
    units = "runs" if by_seed or _as_many(data) else "configurations"
    test = (
        f"partial rank correlation of {flatness.title} and {named(accuracies)}, given a smooth function of "
        f"{loss.title}; cluster-robust (CR2, Bell and McCaffrey), clusters: {units}"
    )
    main, reason, shown = NOTHING, "", None
    ways: tuple[Finding, ...] = ()
    parts: tuple[Finding, ...] = ()
    if len(data.loss) < LEAST_CHECKPOINTS:
        reason = f"{len(data.loss)} checkpoints, {LEAST_CHECKPOINTS} are needed"
    else:
        columns = x, data.y, data.loss, data.runs, data.configurations
        main = _finding("smooth", at_level(*columns, about.level))
        left_x, left_y, first = adjusted(*columns, about.level)
        # Ranks go from −1 to 1.
        places_of = len(x) / 2
        shown = Adjusted(
            x=left_x * places_of, y=left_y * places_of, keys=[data.keys[place] for place in first],
            of={"configurations": "configuration", "seeds": "run"}.get(about.level, "checkpoint"),
            among=len(x), flatness=flatness.title, accuracy=named(accuracies), loss=loss.title,
            within=_within(measured, about, accuracies, loss, flatness),
        )  # fmt: skip
        stratified = _finding("strata", at_level(*columns, about.level, way="strata"))
        if about.level == "all":
            compared = data.pairs(near, draws, data.configurations)
            rows = compared.rows
            matched = by_pairs(
                x[rows], data.y[rows], compared.pairs, data.configurations[rows], correlation=True
            )
            ways = (_finding(compared.named(near, loss), matched), stratified)
            parts = tuple(_finding(_LEVELS[k], at_level(*columns, k)) for k in LEVELS if k != "all")
        else:
            ways = (stratified,)
        reason = _reason(main, units)
    return Asked(
        about=head, says=text, unit="ρ", expected=1 if flatness.better == "more" else -1,
        least=about.least or LEAST_RHO, main=main, ways=ways, parts=parts, units=units, test=test,
        reason=reason, checkpoints=len(data.loss), runs=data.count,
        adjusted=None if math.isnan(main.value) else shown,
    )  # fmt: skip


def _within(
    measured: Measurements,
    about: Flatter,
    accuracies: Sequence[Description],
    loss: Description,
    flatness: Description,
) -> tuple[Finding, ...]:
    """Return the association in the runs of each variant alone, of those that have an interval."""
    found = []
    # Of thousands of runs, nobody reads hundreds of variants.
    apart = len(measured.variants) > 1 and not (measured.many and len(measured.variants) > WITHIN)
    for variant in measured.variants if apart else ():
        data = Columns(measured, accuracies, loss, flatness, measured.checkpoints["variant"] == variant)
        if len(data.loss) < LEAST_CHECKPOINTS:
            continue
        x = data.table[flatness.name].to_numpy(dtype=float)
        estimate = at_level(x, data.y, data.loss, data.runs, data.configurations, about.level)
        found.append(_finding(f"within {variant or OTHERS}", estimate))
    return tuple(one for one in found if one.tested)


def _as_many(data: Columns) -> bool:
    """Return whether every configuration has one run."""
    return data.count == len(np.unique(data.configurations))


def treated(
    measured: Measurements,
    about: Longer | Larger | Algorithm,
    accuracies: Sequence[Description],
    loss: Description,
    near: float,
    draws: Mapping[Key, Array],
) -> Asked:
    """Return a claim about what the sweep sets: steps, size or algorithm."""
    chosen, unit, what, beside_it = _treatment(measured.checkpoints, about)
    data = Columns(measured, accuracies, loss, None, chosen)
    rows = data.table
    match about:
        case Longer():
            x, groups = np.log2(rows["step"].to_numpy(dtype=float)), data.runs
        case Larger():
            x, groups = np.log2(rows["parameters"].to_numpy(dtype=float)), numbers(rows["variant"])
        case Algorithm():
            # Models of one size may differ in what is no parameter, such as dropout.
            x, groups = _better(rows, about).to_numpy(dtype=float), numbers(rows["parameters"])
    head, text = headed(about)
    test = (
        f"regression of {named(accuracies)} on {what}, given a smooth function of {loss.title} and the "
        f"{beside_it}; cluster-robust (CR2, Bell and McCaffrey), clusters: runs"
    )
    main = NOTHING
    ways: tuple[Finding, ...] = ()
    if len(x) < LEAST_CHECKPOINTS or len(np.unique(x)) < 2:
        reason = f"{len(x)} checkpoints with {len(np.unique(x))} values of {what}"
    else:
        held_by = smooth(places(data.loss, loss)), strata(data.loss)
        held, stratified = (coefficient(x, data.y, design, data.runs, groups) for design in held_by)
        compared = data.pairs(near, draws, groups)
        some, treatment, group = compared.rows, x[compared.rows], groups[compared.rows]
        alike = (group[:, None] == group[None, :]) & (treatment[:, None] != treatment[None, :])
        compared = replace(compared, pairs=compared.pairs & alike)
        matched = by_pairs(treatment, data.y[some], compared.pairs, data.runs[some], correlation=False)
        main = _finding("smooth", held)
        ways = (_finding(compared.named(near, loss), matched), _finding("strata", stratified))
        reason = _reason(main, "runs")
    return Asked(
        about=head, says=text, unit=unit, expected=1, least=about.least or LEAST_ACCURACY, main=main,
        ways=ways, test=test, reason=reason, checkpoints=len(data.loss), runs=data.count,
    )  # fmt: skip


def _treatment(table: pd.DataFrame, about: Longer | Larger | Algorithm) -> tuple[pd.Series, str, str, str]:
    """Return the rows of a claim, the unit of its effect, what varies, and what is held beside the loss."""
    match about:
        case Longer():
            return table["step"] > 0, "accuracy per doubling", "the logarithm of steps", "run"
        case Larger():
            return table["parameters"] > 0, "accuracy per doubling", "the logarithm of parameters", "variant"
        case Algorithm():
            return _is(table, about.better) | _is(table, about.than), "accuracy", "the algorithm", "size"


def _better(table: pd.DataFrame, about: Algorithm) -> pd.Series:
    """Return which rows of a claim about two algorithms are of the better one.

    Rows of a variant that is named, such as `adamw-wd0` of `adamw`, are of the variant.
    """
    better = _is(table, about.better)
    variant = about.than.startswith(f"{about.better}-")
    return better & ~_is(table, about.than) if variant else better


def _is(table: pd.DataFrame, algorithm: str) -> pd.Series:
    """Return the rows of an algorithm: its kind, or its whole label."""
    return table["algorithm"].map(lambda label: is_algorithm(str(label), algorithm)).astype(bool)


def beats(
    measured: Measurements, about: Beats, accuracies: Sequence[Description], stored: Draws | None
) -> Asked:
    """Return the claim that the last checkpoints of runs are better than the look-up table.

    Their probes are compared seed by seed where the seeds of all are `stored`.
    """
    head, text = headed(about)
    names = [metric.name for metric in accuracies]
    table = measured.has(*names)
    last = table.loc[table.groupby("run_id")["step"].idxmax()]
    known = all(name in measured.reference for name in names)
    main, reason = NOTHING, "" if known else "the look-up table has not been measured"
    how = "with the standard errors of both"
    if known and len(last) < LEAST_CLUSTERS:
        reason = f"{LEAST_CLUSTERS} runs are needed"
    elif known:
        keys: list[Key] = list(zip(last["run_id"], last["step"].astype(int), strict=True))
        apart = None if stored is None else stored.beside_the_table(accuracies, keys)
        if apart is not None:
            how = "seed by seed of the probe; runs and seeds are samples"
            found = by_seeds(apart)
        else:
            reference = float(np.mean([measured.reference[name] for name in names]))
            error = math.hypot(*(measured.reference_errors.get(name) or 0.0 for name in names)) / len(names)
            found = by_numbers(last[names].to_numpy(dtype=float).mean(axis=1), reference, error)
        main = replace(_finding("mean over runs", found), shrinks=False)
    return Asked(
        about=head, says=text, unit="accuracy", expected=1, least=about.least or LEAST_ACCURACY, main=main,
        checkpoints=len(last), runs=len(last), reason=reason,
        test=f"mean over runs of {named(accuracies)} at the last milestone less that of the look-up table, "
        f"{how}",
    )  # fmt: skip


def _finding(name: str, found: Estimate) -> Finding:
    values = (found.value, found.low, found.high, found.p, found.standard_error)
    value, low, high, p, error = (float(v) for v in values)
    return Finding(
        name=name, value=value, low=low, high=high, p=p, standard_error=error, ratio=found.ratio,
        clusters=found.clusters,
    )  # fmt: skip


def _reason(main: Finding, units: str) -> str:
    """Return why there is no interval, "" where there is one."""
    if main.tested:
        return ""
    if math.isnan(main.value):
        return "at equal loss too little varies"
    if main.clusters < LEAST_CLUSTERS:
        return f"{main.clusters} {units}, at least {LEAST_CLUSTERS} are needed"
    return f"few {units} have most of the variation"
