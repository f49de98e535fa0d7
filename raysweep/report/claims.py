"""The claims of a sweep, tested.

Every claim is about an accuracy at equal loss, and its unit of replication is the run.  The loss is held in
three ways: by a smooth function of it, by strata of neighbours in loss, and by pairs of checkpoints of equal
loss (`raysweep.report.association`, `raysweep.report.matching`).  The first is the one that is judged.

- `flatter`: the rank correlation of flatness and accuracy.  Flatness is observed and not assigned, so what
  is peculiar to a configuration counts once, however many seeds it has: clusters are configurations.
- `longer`: accuracy over log₂ of the step, within runs; clusters are runs.  Here and in what follows accuracy
  is a function of the logarithm of the excess loss, or of a loss whose least value is not known.
- `larger`: accuracy over log₂ of the number of parameters, beside the variant; clusters are runs.  It holds
  for the sizes of the sweep.
- `algorithm`: the difference of accuracy between two algorithms, beside size; clusters are runs.
- `beats`: mean over runs of the accuracy of the last checkpoint less that of the look-up table, with the
  error of both.

Without claims in the sweep file, those are taken that follow from what it varies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from raysweep.evaluation.metric import Description, error_key
from raysweep.report.association import (
    LEAST_CLUSTERS,
    LEVELS,
    Estimate,
    at_level,
    beside,
    coefficient,
    indicators,
    smooth,
    strata,
)
from raysweep.report.correlations import configurations
from raysweep.report.data import Measurements, measurements
from raysweep.report.matching import by_pairs, equal
from raysweep.report.paired import Key, loss_draws, loss_errors
from raysweep.report.regression import Array
from raysweep.report.verdict import Asked, Finding, Verdict, judged
from raysweep.sweep import tidy
from raysweep.sweep.claims import About, Algorithm, Beats, Claim, Flatter, Larger, Longer, Questions

if TYPE_CHECKING:
    import pandas as pd

    from raysweep.sweep import Sweep

#: The smallest effects worth mentioning where a claim says nothing: a correlation, a difference of accuracy.
LEAST_RHO, LEAST_ACCURACY = 0.5, 0.01
#: Fewest checkpoints of a test.
LEAST_CHECKPOINTS = 6
#: Share of the tolerance of saturation up to which two losses count as equal.
MATCHED = 0.1
_NAN = Finding(name="smooth", value=math.nan, low=math.nan, high=math.nan, p=math.nan)


def sweep_verdicts(
    sweep: Sweep, frame: pd.DataFrame | None = None, questions: Questions | None = None
) -> list[Verdict]:
    """Return the verdicts on the claims of a sweep, in the order of its file.

    `frame` is its tidy table, where it has been made already, and `questions` take the place of its own.
    Losses are compared sentence by sentence where the ledger has their values.
    """
    measured = measurements(tidy(sweep.ledger(), sweep) if frame is None else frame)
    loss = loss_of(measured)
    draws = {} if loss is None else loss_draws(sweep, loss)
    return verdicts(measured, questions or sweep.questions, draws)


def verdicts(
    measured: Measurements, questions: Questions, draws: Mapping[Key, Array] | None = None
) -> list[Verdict]:
    """Return the verdicts on claims, judged together; see `raysweep.report.paired.loss_draws` for `draws`."""
    claims = default_claims(measured) if questions.claims is None else questions.claims
    asked = [_asked(measured, claim, questions.tolerance, draws or {}) for claim in claims]
    return judged(asked)


def default_claims(measured: Measurements) -> tuple[Claim, ...]:
    """Return the claims that follow from what a sweep varies."""
    found = []
    table = measured.checkpoints
    if not measured.shown("accuracy") or table.empty:
        return ()
    if measured.comparable():
        found.append(Claim(flatter=Flatter()))
    if table.groupby("run_id")["step"].nunique().gt(1).any():
        found.append(Claim(longer=Longer()))
    if len(measured.sizes) > 1:
        found.append(Claim(larger=Larger()))
    kinds = {str(label).partition("-")[0] for label in table["algorithm"]}
    if {"adamw", "adversarial"} <= kinds:
        found.append(Claim(algorithm=Algorithm(better="adamw", than="adversarial")))
    if any(metric.name in measured.reference for metric in measured.shown("accuracy")):
        found.append(Claim(beats=Beats()))
    return tuple(found)


def loss_of(measured: Measurements) -> Description | None:
    """Return the loss at which checkpoints are compared: the excess loss where it is known."""
    return measured.saturating or next(iter(measured.shown("loss")), None)


def _asked(measured: Measurements, claim: Claim, tolerance: float, draws: Mapping[Key, Array]) -> Asked:
    about, loss = claim.about, loss_of(measured)
    accuracies = _accuracies(measured, about)
    near = about.tolerance or MATCHED * tolerance
    if not accuracies:
        return _without(claim, "no such accuracy has been measured")
    if isinstance(about, Beats):
        return _beats(measured, about, accuracies)
    if loss is None:
        return _without(claim, "no loss has been measured")
    if isinstance(about, (Longer, Larger, Algorithm)):
        return _treated(measured, about, accuracies, loss, near, draws)
    if isinstance(about, Flatter):
        known = {metric.name: metric for metric in measured.comparable()}
        if about.metric is not None and about.metric in measured.metrics:
            known = {about.metric: measured.metrics[about.metric]}
        if not known or (about.metric is not None and about.metric not in known):
            return _without(claim, f"no {about.metric or 'flatness'} has been measured for all checkpoints")
        return _flatter(measured, about, accuracies, loss, next(iter(known.values())), near, draws)
    raise TypeError(f"{type(about).__name__} is no claim")


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


def _headed(about: About) -> tuple[str, str]:
    """Return the task with a colon, "" for all tasks, and the claim that follows it."""
    text = says(about)
    return (f"Task {about.task}: ", text) if about.task else ("", text[:1].upper() + text[1:])


def _without(claim: Claim, reason: str) -> Asked:
    """Return a claim about which nothing can be said."""
    head, text = _headed(claim.about)
    unit = "ρ" if claim.flatter else "accuracy"
    return Asked(about=head, says=text, unit=unit, expected=1, least=1.0, main=_NAN, reason=reason)


def _accuracies(measured: Measurements, about: About) -> list[Description]:
    """Return the accuracies that a claim is about: all tasks of one kind of accuracy, or one of them."""
    shown = measured.shown("accuracy")
    kinds = [m for m in shown if about.accuracy is None or m.quantity.partition("/")[0] == about.accuracy]
    if not kinds:
        return []
    same = [m for m in kinds if m.quantity == kinds[0].quantity]
    return [m for m in same if about.task is None or str(m.of.get("task")) == about.task]


class _Columns:
    """The checkpoints that have all the metrics of a claim, as arrays [n]."""

    def __init__(
        self,
        measured: Measurements,
        accuracies: Sequence[Description],
        loss: Description,
        x: Description | None,
        chosen: pd.Series | None = None,
    ) -> None:
        names = [loss.name, *([x.name] if x else []), *(m.name for m in accuracies)]
        table = measured.has(*names)
        if chosen is not None:
            table = table[chosen.reindex(table.index)]
        self.table = table
        self.loss = table[loss.name].to_numpy(dtype=float)
        self.loss_errors = table[error_key(loss.name)].fillna(0).to_numpy(dtype=float)
        self.y = table[[m.name for m in accuracies]].to_numpy(dtype=float).mean(axis=1)
        self.runs = _numbers(table["run_id"])
        self.configurations = configurations(table)
        self.keys: list[Key] = list(zip(table["run_id"], table["step"].astype(int), strict=True))

    @property
    def count(self) -> int:
        """Number of runs."""
        return len(np.unique(self.runs))

    def pairs(self, tolerance: float, draws: Mapping[Key, Array]) -> tuple[Array, bool]:
        """Return which pairs of checkpoints are of equal loss, and whether sentences were compared."""
        errors, paired = loss_errors(self.keys, self.loss_errors, draws)
        return equal(self.loss, errors, tolerance), paired


def _numbers(column: pd.Series) -> Array:
    return np.unique(column.to_numpy(dtype=str), return_inverse=True)[1]


def _flatter(
    measured: Measurements,
    about: Flatter,
    accuracies: Sequence[Description],
    loss: Description,
    flatness: Description,
    near: float,
    draws: Mapping[Key, Array],
) -> Asked:
    data = _Columns(measured, accuracies, loss, flatness)
    x = data.table[flatness.name].to_numpy(dtype=float)
    head, text = _headed(about)
    by_seed = about.level == "seeds"
    units = "runs" if by_seed or _as_many(data) else "configurations"
    test = (
        f"partial rank correlation of {flatness.title} and {_named(accuracies)}, given a smooth function of "
        f"{loss.title}; cluster-robust (CR2, Bell and McCaffrey), clusters: {units}"
    )
    main, reason = _NAN, ""
    ways: tuple[Finding, ...] = ()
    parts: tuple[Finding, ...] = ()
    if len(data.loss) < LEAST_CHECKPOINTS:
        reason = f"{len(data.loss)} checkpoints, {LEAST_CHECKPOINTS} are needed"
    else:
        columns = x, data.y, data.loss, data.runs, data.configurations
        main = _finding("smooth", at_level(*columns, about.level))
        stratified = _finding("strata", at_level(*columns, about.level, way="strata"))
        pairs, paired = data.pairs(near, draws)
        if about.level == "all":
            matched = by_pairs(x, data.y, pairs, data.configurations, correlation=True)
            ways = (_finding(_of_pairs(near, loss, paired, pairs), matched), stratified)
            parts = tuple(_finding(_LEVELS[k], at_level(*columns, k)) for k in LEVELS if k != "all")
        else:
            ways = (stratified,)
        reason = _reason(main, units)
    return Asked(
        about=head, says=text, unit="ρ", expected=1 if flatness.better == "more" else -1,
        least=about.least or LEAST_RHO, main=main, ways=ways, parts=parts, units=units, test=test,
        reason=reason, checkpoints=len(data.loss), runs=data.count,
    )  # fmt: skip


_LEVELS = {
    "configurations": "between configurations",
    "seeds": "between seeds of a configuration",
    "steps": "along the steps of a run",
}


def _as_many(data: _Columns) -> bool:
    """Return whether every configuration has one run."""
    return data.count == len(np.unique(data.configurations))


def _treated(
    measured: Measurements,
    about: Longer | Larger | Algorithm,
    accuracies: Sequence[Description],
    loss: Description,
    near: float,
    draws: Mapping[Key, Array],
) -> Asked:
    """Return a claim about what the sweep sets: steps, size or algorithm."""
    chosen, unit, what, beside_it = _treatment(measured.checkpoints, about)
    data = _Columns(measured, accuracies, loss, None, chosen)
    rows = data.table
    match about:
        case Longer():
            x, groups = np.log2(rows["step"].to_numpy(dtype=float)), data.runs
        case Larger():
            x, groups = np.log2(rows["parameters"].to_numpy(dtype=float)), _numbers(rows["variant"])
        case Algorithm():
            x, groups = _is(rows, about.better).to_numpy(dtype=float), _numbers(rows["model"])
    head, text = _headed(about)
    test = (
        f"regression of {_named(accuracies)} on {what}, given a smooth function of {loss.title} and the "
        f"{beside_it}; cluster-robust (CR2, Bell and McCaffrey), clusters: runs"
    )
    main = _NAN
    ways: tuple[Finding, ...] = ()
    if len(x) < LEAST_CHECKPOINTS or len(np.unique(x)) < 2:
        reason = f"{len(x)} checkpoints with {len(np.unique(x))} values of {what}"
    else:
        held_by = smooth(places(data.loss, loss)), strata(data.loss)
        designs = [beside(design, indicators(groups)) for design in held_by]
        held, stratified = (coefficient(x, data.y, design, data.runs) for design in designs)
        pairs, paired = data.pairs(near, draws)
        pairs &= (groups[:, None] == groups[None, :]) & (x[:, None] != x[None, :])
        matched = by_pairs(x, data.y, pairs, data.runs, correlation=False)
        main = _finding("smooth", held)
        ways = (_finding(_of_pairs(near, loss, paired, pairs), matched), _finding("strata", stratified))
        reason = _reason(main, "runs")
    return Asked(
        about=head, says=text, unit=unit, expected=1, least=about.least or LEAST_ACCURACY, main=main,
        ways=ways, test=test, reason=reason, checkpoints=len(data.loss), runs=data.count,
    )  # fmt: skip


def places(values: Array, loss: Description) -> Array:
    """Return the coordinates of losses in which accuracy is smooth: the logarithm of the excess, if known."""
    above = values - (loss.least or 0.0)
    place = np.log(above) if loss.least is not None and (above > 0).all() else values
    spread = place.std()
    return (place - place.mean()) / (spread if spread > 0 else 1.0)


def _treatment(table: pd.DataFrame, about: Longer | Larger | Algorithm) -> tuple[pd.Series, str, str, str]:
    """Return the rows of a claim, the unit of its effect, what varies, and what is held beside the loss."""
    match about:
        case Longer():
            return table["step"] > 0, "accuracy per doubling", "the logarithm of steps", "run"
        case Larger():
            return table["parameters"] > 0, "accuracy per doubling", "the logarithm of parameters", "variant"
        case Algorithm():
            return _is(table, about.better) | _is(table, about.than), "accuracy", "the algorithm", "size"


def _is(table: pd.DataFrame, algorithm: str) -> pd.Series:
    """Return the rows of an algorithm: its kind, or its whole label."""
    labels = table["algorithm"].astype(str)
    return (labels == algorithm) | labels.str.startswith(f"{algorithm}-")


def _beats(measured: Measurements, about: Beats, accuracies: Sequence[Description]) -> Asked:
    """Return the claim that the last checkpoints of runs are better than the look-up table."""
    head, text = _headed(about)
    names = [metric.name for metric in accuracies]
    table = measured.has(*names)
    last = table.loc[table.groupby("run_id")["step"].idxmax()]
    known = all(name in measured.reference for name in names)
    main, reason = _NAN, "" if known else "the look-up table has not been measured"
    if known and len(last) < LEAST_CLUSTERS:
        reason = f"{LEAST_CLUSTERS} runs are needed"
    elif known:
        above = last[names].to_numpy(dtype=float).mean(axis=1)
        above -= np.mean([measured.reference[name] for name in names])
        own = above.std(ddof=1) / math.sqrt(len(above))
        of_table = math.hypot(*(measured.reference_errors.get(name) or 0.0 for name in names)) / len(names)
        error, value = math.hypot(own, of_table), float(above.mean())
        dof = float(len(above) - 1)
        margin = float(stats.t.ppf(0.975, dof)) * error
        p = 2 * float(stats.t.sf(abs(value) / error, dof)) if error > 0 else float(value == 0)
        main = Finding(
            name="mean over runs", value=value, low=value - margin, high=value + margin, p=p,
            standard_error=error, dof=dof, clusters=len(above),
        )  # fmt: skip
    return Asked(
        about=head, says=text, unit="accuracy", expected=1, least=about.least or LEAST_ACCURACY, main=main,
        checkpoints=len(last), runs=len(last), reason=reason,
        test=f"mean over runs of {_named(accuracies)} at the last milestone less that of the look-up table, "
        "with the standard errors of both",
    )  # fmt: skip


def _finding(name: str, found: Estimate) -> Finding:
    values = (found.value, found.low, found.high, found.p, found.standard_error, found.dof)
    value, low, high, p, error, dof = (float(v) for v in values)
    return Finding(
        name=name, value=value, low=low, high=high, p=p, standard_error=error, dof=dof,
        clusters=found.clusters,
    )  # fmt: skip


def _of_pairs(near: float, loss: Description, paired: bool, pairs: Array) -> str:
    """Return the name of the way by pairs."""
    how = "" if paired else ", losses as independent numbers"
    return f"{int(pairs.sum()) // 2} pairs within {near:g} {loss.unit}{how}"


def _reason(main: Finding, units: str) -> str:
    """Return why there is no interval, "" where there is one."""
    if main.tested:
        return ""
    if math.isnan(main.value):
        return "at equal loss too little varies"
    if main.clusters < LEAST_CLUSTERS:
        return f"{main.clusters} {units}, at least {LEAST_CLUSTERS} are needed"
    return f"few {units} have most of the variation"


def _named(accuracies: Sequence[Description]) -> str:
    """Return the accuracies of a claim for a reader."""
    first = accuracies[0]
    if len(accuracies) == 1:
        return first.title
    return f"the mean of {first.heading or first.name} over {', '.join(m.place for m in accuracies)}"
